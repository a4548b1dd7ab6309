"""What a GPU kernel is to the launcher: names, argument types, compile-time constants, grid.

The rows themselves are `ftengine/kernels/triton/table.py`'s; compiling is compile_kernel.py's. This
module needs neither torch nor Triton: with a filled cache a machine launches without Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Constant = int | float | bool | str
Grid = Callable[[Mapping[str, int]], tuple[int, int, int]]
"""Given the integer arguments and integer constants of a launch by name: blocks in x, y and z."""

ALIGN = 16
SCALAR_TYPES = ("i1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "fp32", "fp64")


@dataclass(frozen=True)
class Argument:
    """One run-time argument, in Triton's words: "*fp32", "*bf16", "*u8", "i32", "fp32".

    aligned: a pointer or integer that is always a multiple of 16, which lets the compiler use wide
    loads; the launcher refuses others. None = pointers are, numbers are not.
    """

    name: str
    type: str
    aligned: bool | None = None

    def __post_init__(self) -> None:
        if not self.is_pointer and self.type not in SCALAR_TYPES:
            raise ValueError(
                f"argument {self.name}: type {self.type!r} is neither a pointer nor one of "
                f"{', '.join(SCALAR_TYPES)}"
            )

    @property
    def is_pointer(self) -> bool:
        """Whether an address is passed."""
        return self.type.startswith("*")

    @property
    def is_aligned(self) -> bool:
        """Whether the compiler may rely on a multiple of 16."""
        return self.is_pointer if self.aligned is None else self.aligned


@dataclass(frozen=True)
class Kernel:
    """One Triton function with fixed argument types.

    name: unique in the table, also part of the cache's file names, e.g. "rms_norm.f32".
    module, function: where the jitted function is; imported only when it must be compiled.
    arguments: the function's non-constexpr parameters, in its own order.
    constants: the function's constexpr parameters, each of which a Build gives.
    """

    name: str
    module: str
    function: str
    arguments: tuple[Argument, ...]
    constants: tuple[str, ...]
    grid: Grid = field(compare=False)

    def __post_init__(self) -> None:
        names = [*self.constants, *(argument.name for argument in self.arguments)]
        if len(set(names)) != len(names):
            raise ValueError(f"kernel {self.name}: a parameter is named twice: {', '.join(names)}")


@dataclass(frozen=True)
class Build:
    """One compilation of a kernel: the constants' values and the shape of a block.

    constants: (name, value) in any order; the same names as Kernel.constants.
    """

    kernel: str
    constants: tuple[tuple[str, Constant], ...] = ()
    num_warps: int = 4
    num_stages: int = 2

    @property
    def values(self) -> dict[str, Constant]:
        """The constants by name."""
        return dict(self.constants)


@dataclass(frozen=True)
class KernelTable:
    """All kernels, and the builds that are compiled ahead and shipped.

    Raises: ValueError on two kernels of one name, or a build whose constants do not fit.
    """

    kernels: tuple[Kernel, ...]
    builds: tuple[Build, ...] = ()

    def __post_init__(self) -> None:
        names = [kernel.name for kernel in self.kernels]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"kernel table: {', '.join(twice)} stand there twice")
        for build in self.builds:
            self.check(build)

    def kernel(self, name: str) -> Kernel:
        """The row of that name. Raises: ValueError."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        known = ", ".join(kernel.name for kernel in self.kernels)
        raise ValueError(f"no GPU kernel is called {name!r}; known: {known}")

    def check(self, build: Build) -> None:
        """Raises: ValueError when a build leaves out a constant or brings one too many."""
        kernel = self.kernel(build.kernel)
        given = [name for name, _ in build.constants]
        if sorted(given) != sorted(kernel.constants):
            raise ValueError(
                f"build of {kernel.name}: constants {', '.join(sorted(given)) or 'none'} given, "
                f"{', '.join(sorted(kernel.constants)) or 'none'} needed"
            )
