"""GET /metrics: the manager's counters and those of its engines, in Prometheus' text format.

Every number has one writer: requests are counted here, engines by the supervisor, tokens where
answers end. Engines' own lines are passed through with the model's name on them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ftman import __version__, files
from ftman.gateway.routes import Call, Reply, Route
from ftman.gateway.traffic import BUCKETS_S, Spent, Traffic

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STAT_LIMIT_BYTES = 1 << 16

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


async def metrics(call: Call) -> Reply:
    """GET /metrics."""
    families = (*_own(call), *_traffic(call.traffic), *_engines(call))
    own = "".join(line + "\n" for family in families for line in family)
    engines = merged(await call.service.engine_metrics())
    return Reply((own + engines).encode(), media_type=MEDIA_TYPE)


def family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    """The lines of one metric."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield f"{name}{_labels(labels)} {value:.10g}"


def merged(texts: Mapping[str, str]) -> str:
    """Prometheus texts by model as one: each metric once, every sample with its model."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for model, text in texts.items():
        current = ""
        for line in text.splitlines():
            if line.startswith("# "):
                current = line.split(" ", 3)[2]
                known = heads.setdefault(current, [])
                if line not in known:
                    known.append(line)
            elif line:
                samples.setdefault(current, []).append(_with_model(line, model))
    lines = [line for name in heads for line in (*heads[name], *samples.get(name, ()))]
    return "".join(line + "\n" for line in lines)


def _own(call: Call) -> Iterator[Iterator[str]]:
    service = call.service
    jobs = Counter(job.state for job in service.jobs())
    yield family("ft_info", "gauge", "This manager.", [({"version": __version__}, 1)])
    started: list[Sample] = [({}, service.started_wall_s)]
    yield family("process_start_time_seconds", "gauge", "When the manager started.", started)
    resident, open_files = _process()
    if resident:
        text = "Memory of the manager, engines apart."
        yield family("process_resident_memory_bytes", "gauge", text, [({}, resident)])
        yield family("process_open_fds", "gauge", "Open files.", [({}, open_files)])
    running: list[Sample] = [({}, float(jobs["running"]))]
    yield family("ft_jobs_running", "gauge", "Pulls and other jobs under way.", running)


def _traffic(traffic: Traffic) -> Iterator[Iterator[str]]:
    counted: list[Sample] = [
        ({"method": method, "route": route, "status": str(status)}, count)
        for (method, route, status), count in sorted(traffic.requests.items())
    ]
    yield family("ft_requests_total", "counter", "Requests answered.", counted)
    text = "Requests being answered."
    yield family("ft_requests_in_flight", "gauge", text, [({}, traffic.under_way)])
    yield _histogram(traffic.spent)


def _histogram(spent: Mapping[str, Spent]) -> Iterator[str]:
    name = "ft_request_seconds"
    yield f"# HELP {name} Time from a request to the end of its answer."
    yield f"# TYPE {name} histogram"
    for route, item in sorted(spent.items()):
        seen = 0
        for limit, count in zip((*map(str, BUCKETS_S), "+Inf"), item.buckets, strict=True):
            seen += count
            yield f"{name}_bucket{_labels({'route': route, 'le': limit})} {seen}"
        yield f"{name}_sum{_labels({'route': route})} {item.total_s:.10g}"
        yield f"{name}_count{_labels({'route': route})} {seen}"


def _engines(call: Call) -> Iterator[Iterator[str]]:
    service, counts = call.service, call.service.engine_counts()
    queue, tokens = service.queue(), service.token_counts()
    oldest = max((item.wait_s for item in queue), default=0.0)
    yield family("ft_queue_length", "gauge", "Requests that wait.", [({}, len(queue))])
    yield family("ft_queue_oldest_seconds", "gauge", "The longest wait now.", [({}, oldest)])
    loaded = [({"model": m.name, "state": m.state}, 1.0) for m in service.running()]
    yield family("ft_engine", "gauge", "Engines there are.", loaded)
    sizes = [({"model": m.name}, float(m.size_bytes)) for m in service.running()]
    yield family("ft_engine_memory_bytes", "gauge", "Weights and context of engines.", sizes)
    for name, text, found in (
        ("loads", "Models loaded.", counts.loads),
        ("load_seconds", "Seconds in loading them.", counts.load_s),
        ("load_failures", "Loads that failed.", counts.load_failures),
    ):
        samples = [({"model": model}, float(value)) for model, value in found.items()]
        yield family(f"ft_model_{name}_total", "counter", text, samples)
    unloads = [({"model": m, "reason": r}, float(n)) for (m, r), n in counts.unloads.items()]
    yield family("ft_model_unloads_total", "counter", "Models unloaded.", unloads)
    deaths = [({"model": m, "code": c}, float(n)) for (m, c), n in counts.deaths.items()]
    yield family("ft_engine_deaths_total", "counter", "Engines that died unasked.", deaths)
    for name, text in (
        ("answers", "Answers that ended."),
        ("prompt", "Prompt tokens of answers that ended."),
        ("cached", "Those of them that were reused."),
        ("completion", "Tokens generated in answers that ended."),
    ):
        values = [({"model": m}, float(getattr(item, name))) for m, item in tokens.items()]
        unit = "" if name == "answers" else "_tokens"
        yield family(f"ft_{name}{unit}_total", "counter", text, values)


def _with_model(line: str, model: str) -> str:
    name, brace, rest = line.partition("{")
    if brace:
        return f"{name}{_labels({'model': model})[:-1]},{rest}"
    name, _, value = line.partition(" ")
    return f"{name}{_labels({'model': model})} {value}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _process() -> tuple[float, float]:
    """Resident bytes and open files of this process; zeros where /proc does not tell."""
    try:
        pages = files.read_bytes(Path("/proc/self/statm"), limit=_STAT_LIMIT_BYTES).split()[1]
        open_files = len(list(Path("/proc/self/fd").iterdir()))
        return float(int(pages) * os.sysconf("SC_PAGE_SIZE")), float(open_files)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0, 0.0


ROUTES = (Route("GET", "/metrics", metrics),)
