"""What a pull would cost, found out before its first weight byte: bytes, disk, the engine's plan.

Nothing is decided here; whether it fits in memory, and how fast it is, is the engine's forecast.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftman import files
from ftman.convert.messages import ConvertPlan
from ftman.errors import FtmanError
from ftman.pull import disk
from ftman.pull.pull import (
    PullTools,
    disk_need,
    disk_stay,
    job_id,
    plan_folder,
    read_plan,
    up_to_date,
)
from ftman.pull.resolve import Resolved
from ftman.pull.span import NoRangesError
from ftman.pull.threads import in_thread

log = logging.getLogger(__name__)

MAX_PLANS = 16


@dataclass(frozen=True)
class PullCost:
    """Units: bytes; 0 = not known. need_disk_bytes: at the worst moment, beyond what is here.

    plan: the converter's words, None where no headers can be read beforehand (note says why);
    unbuilt: why the model cannot run yet.
    """

    name: str
    origin: str
    license: str
    family: str
    total_params: int
    active_params: int
    num_files: int
    download_bytes: int
    disk_bytes: int
    need_disk_bytes: int
    free_disk_bytes: int
    reserve_bytes: int
    resumes: bool = False
    up_to_date: bool = False
    unbuilt: str = ""
    note: str = ""
    plan: Mapping[str, Any] | None = None

    @property
    def fits_disk(self) -> bool:
        """True if the disk holds all of it at its worst moment."""
        return self.need_disk_bytes + self.reserve_bytes <= self.free_disk_bytes


async def cost_of(tools: PullTools, resolved: Resolved, *, any_family: bool) -> PullCost:
    """Read headers by ranges and add up.

    any_family: sizes of unbuilt families too, and what was read is not kept; else it is taken up
    by the pull that follows.   Raises: FtmanError.
    """
    if not any_family and await in_thread(up_to_date, tools.catalog, resolved) is not None:
        return _cost(tools, resolved, None, "", done=True)
    if resolved.source.wheel is not None:
        return _cost(tools, resolved, None, "a wheel has no headers to read before it is fetched")
    plan, note = tools.plans.get(job_id(resolved)), ""
    if plan is None:
        plan, note = await _read(tools, resolved, any_family)
    return _cost(tools, resolved, plan, note)


async def _read(
    tools: PullTools, resolved: Resolved, any_family: bool
) -> tuple[ConvertPlan | None, str]:
    folder = files.make_dir(plan_folder(tools.paths, resolved))
    try:
        with disk.JobLock(folder / "lock"):
            head = {"name": resolved.name.full, "origin": resolved.source.origin}
            files.write_atomic(folder / "job.json", json.dumps(head).encode())
            plan = await read_plan(tools, resolved, folder, any_family=any_family)
    except NoRangesError:
        return None, "its server gives only whole files"
    except files.LockedError:
        return None, "its headers are being read by another command"
    except OSError as error:
        what = f"planning {resolved.name.short}"
        raise disk.explain(error, tools.paths.models, what) from error
    finally:
        if any_family:
            await in_thread(files.remove_tree, folder)
    if not plan.unbuilt:
        while len(tools.plans) >= MAX_PLANS:
            del tools.plans[next(iter(tools.plans))]
        tools.plans[job_id(resolved)] = plan
    return plan, ""


def _cost(
    tools: PullTools,
    resolved: Resolved,
    plan: ConvertPlan | None,
    note: str,
    *,
    done: bool = False,
) -> PullCost:
    source, entry = resolved.source, resolved.entry
    folder = tools.paths.partial / job_id(resolved)
    content = plan.content if plan is not None else {}
    details = plan.details if plan is not None else {}
    fetched = source.bytes if source.remote else 0
    if source.wheel is not None and source.wheel_path is None:
        fetched = source.wheel.wheel_bytes
    return PullCost(
        name=resolved.name.short,
        origin=source.origin,
        license=entry.license if entry is not None else "",
        family=str(content.get("family") or (entry.family if entry is not None else "")),
        total_params=_whole(details.get("parameter_count")) or (entry.total_params if entry else 0),
        active_params=_whole(details.get("active_parameter_count"))
        or (entry.active_params if entry else 0),
        num_files=len(source.files),
        download_bytes=fetched,
        disk_bytes=disk_stay(resolved, plan),
        need_disk_bytes=0 if done else disk_need(resolved, folder, plan),
        free_disk_bytes=files.free_bytes(tools.paths.models),
        reserve_bytes=tools.reserve_bytes,
        resumes=_is_begun(folder),
        up_to_date=done,
        unbuilt=plan.unbuilt if plan is not None else "",
        note=note,
        plan=content or None,
    )


def _is_begun(folder: Path) -> bool:
    return any(".part" in path.name or path.suffix == ".ftw" for path in files.walk(folder))


def _whole(value: Any) -> int:
    return value if type(value) is int else 0


def require_plan(cost: PullCost) -> Mapping[str, Any]:
    """The converter's words.   Raises: FtmanError where there are none."""
    if cost.plan is None:
        raise FtmanError(
            f"{cost.name} cannot be judged before it is fetched: {cost.note}",
            hint=f"It takes {disk.amount(cost.download_bytes)}: ft pull {cost.name}",
            code="no_headers",
            status=409,
        )
    return cost.plan
