"""Asking a converter child for other weights out of converted ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ftman.convert.job import COMMAND, ConvertChild, OnProgress
from ftman.convert.messages import ByteRange, ConvertResult, Have, encode


@dataclass(frozen=True)
class Remake:
    """What to change. quantize: a format in lower case, "" = none; adapter: file name -> path."""

    quantize: str = ""
    adapter: Mapping[str, Path] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The status that people see while it runs."""
        if self.quantize:
            return f"quantizing model to {self.quantize.upper()}"
        return "converting adapter"


@dataclass(frozen=True)
class RemakeSpec:
    """One run: the converted folder `source` becomes the new folder `target`."""

    name: str
    source: Path
    target: Path
    remake: Remake

    def line(self) -> bytes:
        """The first line for the child."""
        adapter = {name: str(path) for name, path in self.remake.adapter.items()}
        job = {
            "source": str(self.source),
            "target": str(self.target),
            "quantize": self.remake.quantize or None,
            "adapter": adapter or None,
        }
        return encode({"remake": job})


class _NothingToBring:
    """Everything a remake reads lies on this machine already."""

    async def provide(self, wanted: ByteRange) -> AsyncIterator[Have]:
        raise ValueError(f"it asks for {wanted.file}")
        yield  # makes this an asynchronous generator

    async def release(self, done: ByteRange) -> None:
        """Nothing is given back either."""


async def run_remake(
    spec: RemakeSpec, on_progress: OnProgress, command: Sequence[str] = COMMAND
) -> ConvertResult:
    """Make the new folder.   Raises: FtmanError (the child's own error, or how it died)."""
    return await ConvertChild(spec, _NothingToBring(), command).remake(on_progress)
