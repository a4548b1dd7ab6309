"""Resolve, list, commit, copy and delete installed models: the only writer of the store.

Order is what keeps a crash harmless: blobs, then the manifest; and the manifest first when
deleting. Manifests are the truth; nothing else is consulted about what is installed.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from ftman import files
from ftman.catalog import content
from ftman.catalog.blobs import BlobStore
from ftman.catalog.index import Installed, ManifestFolder
from ftman.catalog.manifest import FTW_TYPE, Layer, Manifest, is_ftw_id
from ftman.catalog.model import Damage, Model, ModelChanges, ModelInfo, NewModel, Orphan
from ftman.catalog.verify import INDEX_NAME, SizeChecker, verify_model
from ftman.clock import SYSTEM, Clock
from ftman.config import Paths
from ftman.errors import FtmanError, IntegrityError, NotFoundError
from ftman.names import ModelName, parse_name, printable

log = logging.getLogger(__name__)

GRACE_S = 3600.0
_TRASH_PREFIX = ".trash-"
_AWAY = "its store is not there"


class Catalog:
    """What is installed in one store. Methods may be called from several threads.

    default_tags tells which tag of an indexed model a name without one means.
    """

    def __init__(
        self,
        paths: Paths,
        default_tags: Callable[[ModelName], str | None],
        clock: Clock = SYSTEM,
    ):
        self.paths = paths
        self.blobs = BlobStore(paths.blobs)
        self._manifests = ManifestFolder(paths.manifests)
        self._default_tags = default_tags
        self._clock = clock
        self._sizes = SizeChecker(self.blobs)
        self._models: dict[ModelName, tuple[Installed, Model]] = {}
        self._lock = threading.RLock()

    @property
    def away(self) -> bool:
        """Whether models were read and the store is not there any more, as on a disk unmounted."""
        return bool(self._models) and not self.paths.manifests.is_dir()

    def find(self, text: str) -> Model:
        """The installed model that a name as typed means.

        Raises: UsageError on a malformed name, NotFoundError, IntegrityError on a bad manifest.
        """
        # Readers do not wait for writers; only what looks damaged is looked at again in peace,
        # since it may have been deleted meanwhile.
        try:
            model = self._found(text)
        except NotFoundError:
            return self._remembered(text)
        if model.damaged:
            with self._lock:
                model = self._found(text)
        return model

    def resolve_installed(self, text: str) -> ModelName | None:
        """The installed name that `text` means: its tag, else the default one, else the only one.

        Letter case does not matter.   Raises: UsageError on a malformed name.
        """
        name = self._manifests.adopt(parse_name(text))
        tags = self._manifests.tags(name)
        if name.tag in tags:
            return name.with_tag(name.tag)
        if not name.asks_latest or not tags:
            return None
        default = self._default_tags(name) or ""
        chosen = [tag for tag in tags if tag.lower() == default.lower()] or tags
        return name.with_tag(chosen[0]) if len(chosen) == 1 else None

    def models(self) -> list[Model]:
        """Every installed model, newest first; unreadable manifests are skipped and logged."""
        found = self._all()
        if any(model.damaged for model in found):
            with self._lock:
                found = self._all()
        return sorted(found, key=lambda model: (-model.modified_wall_s, model.name.path_parts))

    def info(self, model: Model, *, verbose: bool = False) -> ModelInfo:
        """Metadata under GGUF key names; arrays are None unless `verbose`."""
        return content.read_info(model, self.blobs, verbose=verbose)

    def commit(self, name: ModelName, new: NewModel) -> Model:
        """Install a model whose FTW folder is in place, replacing one of that name.

        Raises: IntegrityError when the folder is not there, OSError when the disk refuses.
        """
        with self._lock:
            folder = self._ftw(new.ftw_id)
            if not (folder / INDEX_NAME).is_file():
                raise IntegrityError(
                    f"the weights {new.ftw_id[:12]} of {name.short} are not in the store",
                    hint=f"Fetch them again: ft pull {name.short}",
                )
            manifest = content.write_model(new, self.blobs, files.tree_bytes(folder))
            return self._publish(name, manifest.to_json())

    def adopt(self, name: ModelName, data: bytes) -> Model:
        """Install a manifest whose blobs and weights are in place already.

        Raises: IntegrityError naming what is missing, OSError.
        """
        with self._lock:
            manifest = Manifest.from_json(data)
            for layer in self._layers(manifest):
                weights = layer.media_type == FTW_TYPE
                there = self._ftw(layer.hex).is_dir() if weights else self.blobs.has(layer.digest)
                if not there:
                    raise IntegrityError(
                        f"{name.short} needs {layer.digest[:19]}, which is missing"
                    )
            return self._publish(name, data)

    def manifest_bytes(self, model: Model) -> bytes:
        """The manifest of an installed model, as it lies on disk."""
        return files.read_bytes(self._manifests.path(model.name))

    def create_from(self, base: Model, name: ModelName, changes: ModelChanges) -> Model:
        """Install a model that shares another one's weights and changes its texts."""
        if base.damaged:
            raise IntegrityError(
                f"model '{base.name.short}' is damaged: {base.damaged}",
                hint=f"Repair it first: ft pull {base.name.short}",
            )
        with self._lock:
            kept = content.as_new(base, self.info(base))
            given = {
                key: getattr(changes, key)
                for key in ("template", "system", "renderer", "parser", "requires")
                if getattr(changes, key) is not None
            }
            merged = {**base.parameters, **(changes.parameters or {})}
            new = replace(
                kept,
                **given,
                parameters=merged,
                licenses=(*base.licenses, *changes.licenses_added),
                messages=changes.messages or base.messages,
                parent=base.name.short,
            )
            return self.commit(name, new)

    def copy(self, source: str, destination: str) -> None:
        """Give an installed model a second name; an existing destination is replaced.

        Raises: UsageError naming source or destination, NotFoundError.
        """
        target = parse_name(destination)
        with self._lock:
            origin = self._require(source)
            if self._manifests.adopt(target).path_parts == origin.path_parts:
                return
            data = files.read_bytes(self._manifests.path(origin))
            Manifest.from_json(data)
            self._publish(target, data)

    def delete(self, text: str, in_use: Callable[[str], bool]) -> None:
        """Remove a name, then the blobs and weights that no other name needs.

        in_use is asked with a digest ("sha256:...") or an FTW id; what it claims is left for
        a later sweep.   Raises: UsageError, NotFoundError.
        """
        with self._lock:
            name = self._require(text)
            try:
                layers = self._layers(self._manifests.read(name).manifest)
            except IntegrityError as error:
                log.warning("deleting a damaged model: %s", error.message)
                layers = ()
            self._manifests.remove(name)
            self._models.pop(name, None)
            self._drop_unreferenced(layers, in_use)
        self._empty_trash()

    def drop_unfinished(self, before_wall_s: float) -> int:
        """Remove temporary files older than this manager, whose writers are gone; returns bytes."""
        with self._lock:
            freed = self.blobs.sweep_temporaries(before_wall_s)
            return freed + self._manifests.sweep_temporaries(before_wall_s)

    def sweep(self, keep: Collection[str], grace_s: float = GRACE_S) -> int:
        """Remove orphans last written more than `grace_s` ago; returns the bytes that freed.

        keep: digests and FTW ids that engines or jobs use. Nothing is removed while any manifest
        is unreadable, since what it needs is not known.
        """
        with self._lock:
            installed, unreadable = self._manifests.read_all()
            if unreadable:
                log.warning("no clean-up: %d unreadable manifests", unreadable)
                return 0
            needed = self._references(installed) | set(keep)
            before = self._clock.wall() - grace_s
            freed = self.blobs.sweep(needed, before)
            freed += self._manifests.sweep_temporaries(before)
            for folder in self._ftw_folders():
                used = folder.name in needed or f"sha256:{folder.name}" in needed
                if not used and folder.stat().st_mtime < before:
                    self._drop_weights(folder)
            for folder in self._stale_sources():
                if folder.stat().st_mtime < before:
                    freed += files.tree_bytes(folder)
                    files.remove_tree(folder)
        return freed + self._empty_trash()

    def orphans(self, in_use: Collection[str], grace_s: float = GRACE_S) -> list[Orphan]:
        """What no installed model names, largest first, and what `sweep` would do about each.

        in_use: digests and FTW ids that engines or jobs use.
        """
        installed, unreadable = self._manifests.read_all()
        named = self._references(installed)
        now, found = self._clock.wall(), []
        folders = [f for f in self._ftw_folders() if f"sha256:{f.name}" not in named]
        paths = [("weights", f) for f in (*folders, *self._ftw_folders(trash=True))]
        paths += [("source", folder) for folder in self._stale_sources()]
        paths += [("blob", path) for path in self.blobs.orphans(named)]
        for kind, path in paths:
            with contextlib.suppress(OSError):  # removed meanwhile
                size = path.stat().st_size if kind == "blob" else files.tree_bytes(path)
                age_s = now - path.stat().st_mtime
                trash = path.name.startswith(_TRASH_PREFIX)
                used = path.name in in_use or path.name.replace("-", ":", 1) in in_use
                kept = _why_kept(unreadable, used, age_s, grace_s)
                due = trash or not kept
                reason = "deleted, not yet gone" if trash else kept or "no model names it"
                found.append(Orphan(kind, path, size, age_s, due, reason))
        return sorted(found, key=lambda item: -item.bytes)

    def check_sizes(self, model: Model) -> str:
        """ "" or which file is damaged and how; a cheap check for before a load."""
        return model.damaged or self._sizes.check(model)

    def condemn(self, ftw_id: str, problem: str) -> None:
        """Weights turned out to be damaged although their sizes are right: a pull repairs them."""
        self._sizes.condemn(self._ftw(ftw_id), problem)

    def absolve(self, ftw_id: str) -> None:
        """Weights were mended in place: their sizes decide again."""
        self._sizes.forget(self._ftw(ftw_id))

    def verify(self, model: Model, on_bytes: Callable[[int], None] | None = None) -> list[Damage]:
        """Read every byte of a model; list what is damaged. Slow: for a thread, not the loop."""
        return verify_model(model, self.blobs, on_bytes)

    def _remembered(self, text: str) -> Model:
        """A model that was there, of a store whose disk went away: an engine may still hold it.

        Raises: NotFoundError when the store is where it was.
        """
        name = parse_name(text)
        same = [
            model
            for known, (_, model) in self._models.items()
            if known.stem.lower() == name.stem.lower()
            and (name.asks_latest or known.tag.lower() == name.tag.lower())
        ]
        if not self.away or not same:
            raise self._not_found(text)
        exact = [model for model in same if model.name.tag.lower() == name.tag.lower()]
        return replace((exact or same)[0], damaged=_AWAY)

    def _found(self, text: str) -> Model:
        try:
            return self._model(self._manifests.read(self._require(text)))
        except FileNotFoundError:
            raise self._not_found(text) from None

    def _all(self) -> list[Model]:
        installed, _ = self._manifests.read_all()
        if not installed and self.away:
            return [replace(model, damaged=_AWAY) for _, model in tuple(self._models.values())]
        return [self._model(item) for item in installed]

    def _require(self, text: str) -> ModelName:
        name = self.resolve_installed(text)
        if name is None:
            raise self._not_found(text)
        return name

    def _not_found(self, text: str) -> NotFoundError:
        asked = parse_name(text)
        tags = self._manifests.tags(self._manifests.adopt(asked))
        hint = f"Get it: ft pull {asked.short if asked.tagged else asked.stem}"
        if tags:
            hint = f"Installed tags of {asked.stem}: {', '.join(tags[:8])}."
        return NotFoundError(
            f"model '{printable(text)}' not found", hint=hint, code="model_not_found"
        )

    def _model(self, installed: Installed) -> Model:
        known = self._models.get(installed.name)
        if known is not None and known[0] is installed and not known[1].damaged:
            model = known[1]
        else:
            model = content.read_model(
                installed.name,
                installed.manifest,
                installed.digest,
                installed.modified_wall_s,
                content.Reader(self.blobs, self.paths.ftw),
            )
            self._models[installed.name] = (installed, model)
        problem = model.damaged or self._sizes.check(model)
        return replace(model, damaged=problem) if problem else model

    def _publish(self, name: ModelName, data: bytes) -> Model:
        name = replace(self._manifests.adopt(name), tagged=True)
        replaced: tuple[Layer, ...] = ()
        with contextlib.suppress(FileNotFoundError, FtmanError):
            replaced = self._layers(self._manifests.read(name).manifest)
        self._manifests.write(name, data)
        small = tuple(layer for layer in replaced if layer.media_type != FTW_TYPE)
        self._drop_unreferenced(small, lambda _: False)
        return self._model(self._manifests.read(name))

    def _drop_unreferenced(self, layers: tuple[Layer, ...], in_use: Callable[[str], bool]) -> None:
        installed, unreadable = self._manifests.read_all()
        if unreadable:
            return
        needed = self._references(installed)
        for layer in layers:
            if layer.digest in needed or in_use(layer.digest) or in_use(layer.hex):
                continue
            try:
                if layer.media_type != FTW_TYPE:
                    self.blobs.remove(layer.digest)
                else:
                    self._drop_weights(self._ftw(layer.hex))
            except OSError as error:
                log.warning("%s is left for a later clean-up: %s", layer.digest, error)

    def _drop_weights(self, folder: Path) -> None:
        """Take weights out of sight; removing hundreds of gigabytes may take seconds, later."""
        if folder.is_dir():
            trash = f"{_TRASH_PREFIX}{folder.name}-{secrets.token_hex(4)}"
            files.rename(folder, folder.with_name(trash))
        if self.paths.parked is not None:
            files.remove_tree(self.paths.parked / folder.name)  # what was said to it goes with it
        self._sizes.forget(folder)

    def _empty_trash(self) -> int:
        freed = 0
        for folder in self._ftw_folders(trash=True):
            try:
                size = files.tree_bytes(folder)
                files.remove_tree(folder)
                freed += size
            except OSError as error:
                log.warning("%s is left for a later clean-up: %s", folder.name, error)
        return freed

    def _stale_sources(self) -> list[Path]:
        """Folders of kept source files that no installed model was made from."""
        root = self.paths.sources
        folders = sorted(root.iterdir()) if root.is_dir() else []
        needed = {str(m.source.get("identity") or "")[:16] for m in self._all()} if folders else ()
        return [folder for folder in folders if folder.name not in needed]

    def _ftw(self, ftw_id: str) -> Path:
        if not is_ftw_id(ftw_id):
            raise IntegrityError(f"{printable(ftw_id)!r} is not an FTW id (64 hex digits)")
        return self.paths.ftw / ftw_id

    def _ftw_folders(self, *, trash: bool = False) -> list[Path]:
        if not self.paths.ftw.is_dir():
            return []
        found = (path for path in self.paths.ftw.iterdir() if path.is_dir())
        return sorted(path for path in found if path.name.startswith(_TRASH_PREFIX) == trash)

    @staticmethod
    def _layers(manifest: Manifest) -> tuple[Layer, ...]:
        return (*manifest.layers, manifest.config)

    @staticmethod
    def _references(installed: list[Installed]) -> set[str]:
        return {digest for item in installed for digest in item.manifest.digests}


def _why_kept(unreadable: int, used: bool, age_s: float, grace_s: float) -> str:
    if unreadable:
        return "a manifest cannot be read, so what it needs is not known"
    if used:
        return "an engine or a job uses it"
    if age_s <= grace_s:
        return f"written less than {grace_s / 60:.0f} minutes ago: it may be about to be named"
    return ""
