"""The same converter on files of this machine, in this process: for tests, benchmarks and tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ftengine.convert.convert import run_job
from ftengine.convert.plan import plan_job
from ftengine.convert.pooling import POOLING_FILE
from ftengine.convert.protocol import Derive, Have, Job, SourceFile
from ftengine.convert.tiktoken import RANKS_FILE
from ftengine.errors import RequestError

_NAMES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
    "hf_quant_config.json",
    RANKS_FILE,
)


class LocalLink:
    """A Link whose windows are whole local files; messages go to `on_message`."""

    def __init__(
        self,
        paths: Mapping[str, Path],
        on_message: Callable[[Mapping[str, Any]], None] = lambda message: None,
    ):
        sizes = {name: path.stat().st_size for name, path in paths.items()}
        self._queue = [Have(name, 0, sizes[name], path) for name, path in paths.items()]
        self._on_message = on_message

    def send(self, message: Mapping[str, Any]) -> None:
        self._on_message(message)

    def receive(self, *, block: bool) -> Have | None:
        if self._queue:
            return self._queue.pop(0)
        if block:
            raise RequestError("a source file changed while it was read; start again")
        return None


def convert_folder(
    src: Path,
    dst: Path,
    *,
    derive: Derive | None = None,
    name: str = "",
    on_message: Callable[[Mapping[str, Any]], None] = lambda message: None,
) -> dict[str, Any]:
    """Convert a checkpoint folder or a GGUF file to an FTW folder; returns the result.

    Raises: EngineError, OSError.
    """
    job, paths = local_job(src, dst, derive=derive, name=name)
    return run_job(job, LocalLink(paths, on_message))


def plan_folder(src: Path, *, derive: Derive | None = None) -> dict[str, Any]:
    """The plan for a checkpoint folder or a GGUF file. Raises: EngineError, OSError."""
    job, paths = local_job(src, Path("/"), derive=derive)
    return plan_job(job, LocalLink(paths))


def local_job(
    src: Path, dst: Path, *, derive: Derive | None = None, name: str = ""
) -> tuple[Job, dict[str, Path]]:
    """The job for a local checkpoint and where each of its files lies.

    Raises: RequestError if there is nothing to convert.
    """
    kind, found = _find_files(src)
    paths = {path.name: path for path in sorted(found)}
    pooling = src / "1_Pooling" / "config.json"
    if pooling.is_file():
        paths[POOLING_FILE] = pooling
    listed = tuple(SourceFile(item, path.stat().st_size) for item, path in sorted(paths.items()))
    return Job(kind, listed, dst.absolute(), derive, name), paths


def _find_files(src: Path) -> tuple[str, Iterable[Path]]:
    if src.is_file():
        return "gguf", [src]
    if not src.is_dir():
        raise RequestError(f"{src} is neither a folder nor a file")
    tensors = list(src.glob("*.safetensors"))
    if tensors:
        return "safetensors", [*tensors, *(src / n for n in _NAMES if (src / n).is_file())]
    parts = list(src.glob("*.gguf"))
    if not parts:
        raise RequestError(f"{src} holds neither .safetensors nor .gguf files")
    return "gguf", parts
