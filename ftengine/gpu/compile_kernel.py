"""Triton source -> cubin or hsaco for any target, on any machine; the only place that imports it.

No GPU, no C compiler and no Python.h are needed: Triton's own launcher, which needs them, is not
used. What the launcher relies on is checked here, where a new Triton would first break it.
"""

from __future__ import annotations

import importlib
import tempfile
from typing import Any

from ftengine.errors import EngineError
from ftengine.gpu.driver import Target
from ftengine.gpu.kernel_cache import CompiledKernel
from ftengine.gpu.kernel_table import ALIGN, Build, Kernel

_IMAGES = {"cuda": "cubin", "hip": "hsaco"}
_EXPECTED = {
    "global_scratch_size": 0,
    "profile_scratch_size": 0,
    "num_ctas": 1,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
}
"""What a launch would have to care for if it were otherwise. Names that Triton lacks are fine."""


def compile_kernel(kernel: Kernel, build: Build, target: Target) -> CompiledKernel:
    """Compile one build. Takes seconds.

    Raises: EngineError("kernel_build") naming the kernel when the table and the function differ, or
    when Triton made something that the launcher does not serve. Triton's own errors pass.
    """
    import triton  # takes a second and is needed only where something must be compiled

    compiled = compile_in_triton(kernel, build, target)
    metadata = compiled.metadata
    for name, expected in _EXPECTED.items():
        if (getattr(metadata, name, None) or expected) != expected:
            raise EngineError(
                f"the GPU kernel {kernel.name} was compiled with {name} = "
                f"{getattr(metadata, name)}, which no launch cares for; {expected} is needed",
                code="kernel_build",
            )
    return CompiledKernel(
        image=bytes(compiled.asm[_IMAGES[target.backend]]),
        entry=str(metadata.name),
        num_warps=int(metadata.num_warps),
        warp_size=target.warp_size,
        shared_bytes=int(metadata.shared),
        triton=str(triton.__version__),
    )


def compile_in_triton(kernel: Kernel, build: Build, target: Target) -> Any:
    """Triton's own object, with every stage's text in `asm`; for tests that look at it."""
    import triton
    from triton.backends.compiler import GPUTarget

    function = getattr(importlib.import_module(kernel.module), kernel.function)
    _check_parameters(kernel, tuple(function.arg_names))
    types = {argument.name: argument.type for argument in kernel.arguments}
    source = triton.compiler.ASTSource(
        fn=function,
        signature={name: types.get(name, "constexpr") for name in function.arg_names},
        constexprs=build.values,
        attrs=_attributes(kernel, tuple(function.arg_names)),
    )
    arch: int | str = int(target.arch) if target.backend == "cuda" else target.arch
    # Triton keeps a cache of its own, by its own rules; ours is the one that counts.
    knobs = triton.knobs
    with (
        tempfile.TemporaryDirectory(prefix="ft-triton-") as folder,
        knobs.cache.scope(),
        knobs.compilation.scope(),
    ):
        knobs.cache.dir = folder
        knobs.compilation.disable_line_info = True  # three quarters of an image
        return triton.compile(
            source,
            target=GPUTarget(target.backend, arch, target.warp_size),
            options={"num_warps": build.num_warps, "num_stages": build.num_stages},
        )


def _attributes(kernel: Kernel, names: tuple[str, ...]) -> dict[tuple[int, ...], list[list[Any]]]:
    return {
        (names.index(argument.name),): [["tt.divisibility", ALIGN]]
        for argument in kernel.arguments
        if argument.is_aligned
    }


def _check_parameters(kernel: Kernel, names: tuple[str, ...]) -> None:
    given = [argument.name for argument in kernel.arguments]
    if [name for name in names if name not in kernel.constants] != given:
        raise EngineError(
            f"the GPU kernel {kernel.name}: the table says ({', '.join(given)}) and constants "
            f"({', '.join(kernel.constants)}), the function has ({', '.join(names)}); "
            f"the table's order must be the function's",
            code="kernel_build",
        )
