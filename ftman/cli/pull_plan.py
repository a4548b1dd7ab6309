"""The plan that is printed before a pull: what it will cost, and whether it will run here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftman.cli.units import human_bytes, human_number

LABEL_CELLS = 11
VALUE_CELLS = 38


def plan_text(plan: Mapping[str, Any]) -> str:
    """A plan as people read it; a line for each thing that is known."""
    lines = [_title(plan), _download(plan)]
    forecast = plan.get("forecast")
    if forecast:
        lines += [_memory(forecast), *_device(forecast), *_expected(forecast)]
    elif plan.get("note"):
        lines.append(_line("memory", f"not known yet: {plan['note']}", ""))
    return "\n".join(lines)


def problem(plan: Mapping[str, Any]) -> str:
    """ "" or why the model cannot run on this machine once it is here. Disk is the pull's own."""
    forecast = plan.get("forecast") or {}
    if forecast.get("fits", True):
        return ""
    return f"{plan.get('name')} does not fit in this machine's memory: {forecast.get('reason')}"


def _title(plan: Mapping[str, Any]) -> str:
    total, active = _count(plan, "total_params"), _count(plan, "active_params")
    words = []
    if total:
        some = f" ({human_number(active)} active)" if active not in (0, total) else ""
        words.append(f"{human_number(total)}{some} parameters")
    words += [str(plan[key]) for key in ("family", "license") if plan.get(key)]
    words.append(f"from {plan.get('origin')}")
    return f"{plan.get('name')}   {', '.join(words)}"


def _download(plan: Mapping[str, Any]) -> str:
    files = _count(plan, "num_files")
    fetched = _count(plan, "download_bytes")
    what = f"{human_bytes(fetched)} in {files} file{'s' if files != 1 else ''}"
    if not fetched:
        what = "nothing: it is on this machine"
    elif plan.get("resumes"):
        what += ", partly here"
    need = human_bytes(_count(plan, "need_disk_bytes"))
    kept = human_bytes(_count(plan, "disk_bytes"))
    have = f"free disk {human_bytes(_count(plan, 'free_disk_bytes'))}"
    verdict = "ok" if plan.get("fits_disk") else "TOO SMALL"
    return _line(
        "download", what, f"{have}   {verdict} ({kept} stay, peak {need} while converting)"
    )


def _memory(forecast: Mapping[str, Any]) -> str:
    ram = human_bytes(_count(forecast, "ram_bytes"))
    here = f"this machine {human_bytes(_count(forecast, 'machine_ram_bytes'))}"
    verdict = "ok"
    if not forecast.get("fits"):
        verdict = "TOO SMALL"
    elif forecast.get("tier") == "disk":
        verdict = "its experts do not fit: read from disk, slow"
    tokens = _count(forecast, "context_tokens")
    return _line("memory", f"{ram} of RAM at {tokens} tokens of context", f"{here}   {verdict}")


def _device(forecast: Mapping[str, Any]) -> list[str]:
    if not _count(forecast, "vram_bytes"):
        return []
    share = float(forecast.get("cached_share") or 0)
    slots = f"{_count(forecast, 'expert_slots')} experts in slots ({share:.0%})"
    used = human_bytes(_count(forecast, "vram_bytes"))
    return [_line("gpu", f"{used}, {slots}", str(forecast.get("device")))]


def _expected(forecast: Mapping[str, Any]) -> list[str]:
    if not forecast.get("fits"):
        return []
    if "tokens_per_s" not in forecast:
        return [
            _line("expected", "speed not known: this machine is measured at the first load", "")
        ]
    speed = f"{float(forecast['tokens_per_s']):.1f} tokens/s"
    first = f"first token {float(forecast['ttft_s']):.1f} s at {forecast['prompt_tokens']} tokens"
    how = f"strategy {forecast['strategy']}; computed from measured rates"
    return [_line("expected", f"{speed}, {first}", f"({how})")]


def _line(label: str, value: str, rest: str) -> str:
    return f"  {label.ljust(LABEL_CELLS)}{value.ljust(VALUE_CELLS)}   {rest}".rstrip()


def _count(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
