"""The launch convention, read off compiled files, and launches on the stand-in driver."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ftengine.errors import EngineError
from ftengine.gpu.compile_kernel import compile_in_triton, compile_kernel
from ftengine.gpu.driver import Driver, Target
from ftengine.gpu.kernel_cache import CompiledKernel, KernelCache
from ftengine.gpu.kernel_table import Argument, Build, Kernel, KernelTable
from ftengine.gpu.launcher import Launcher, pack_arguments
from ftengine.gpu.stream import Stream, capture
from tests.ftengine.gpu.cubin import parameter_sizes
from tests.ftengine.gpu.fake_driver import FakeGpu
from tests.ftengine.gpu.sample_table import SCALE, SCALE_32, SQUARE, SQUARE_128, TABLE

SCALE_ARGUMENTS = {"out": 4096, "x": 8192, "factor": 0.5, "num_cols": 48, "row_start": -1}
SQUARE_ARGUMENTS = {"out": 4096, "a": 8192, "num": 128}
CUDA = [Target("cuda", arch, 32) for arch in ("80", "86", "89", "90", "120")]
HIP = [Target("hip", "gfx1100", 32), Target("hip", "gfx942", 64)]
slow = pytest.mark.slow


@pytest.mark.parametrize(
    "target",
    [pytest.param(target, marks=() if target.arch in ("89",) else slow) for target in CUDA],
    ids=lambda target: str(target.label),
)
@pytest.mark.parametrize(
    ("kernel", "build", "arguments"),
    [(SCALE, SCALE_32, SCALE_ARGUMENTS), (SQUARE, SQUARE_128, SQUARE_ARGUMENTS)],
    ids=["scale", "square"],
)
def test_convention_on_cuda(
    kernel: Kernel, build: Build, arguments: dict[str, float], target: Target
) -> None:
    """Arguments in order, then two pointers; nothing between and nothing after."""
    pytest.importorskip("triton")
    compiled = compile_kernel(kernel, build, target)
    packed = [len(item) for item in pack_arguments(kernel, arguments)]
    assert parameter_sizes(compiled.image, compiled.entry) == packed
    assert compiled.entry == kernel.function
    assert compiled.num_threads == build.num_warps * 32


@pytest.mark.parametrize("target", HIP, ids=lambda target: str(target.label))
def test_convention_on_hip(target: Target) -> None:
    pytest.importorskip("triton")
    text = compile_in_triton(SCALE, SCALE_32, target).asm["amdgcn"]
    described = text[text.index(".args:") : text.index(".group_segment_fixed_size")]
    sizes = [int(size) for size in re.findall(r"\.size: +(\d+)", described)]
    assert sizes == [len(item) for item in pack_arguments(SCALE, SCALE_ARGUMENTS)]
    threads = re.search(r"\.max_flat_workgroup_size: (\d+)", text)
    compiled = compile_kernel(SCALE, SCALE_32, target)
    assert threads is not None
    assert int(threads[1]) == compiled.num_threads == 2 * target.warp_size
    assert compiled.image.startswith(b"\x7fELF")


def test_a_launch_reaches_the_driver_as_compiled(
    gpu: FakeGpu, driver: Driver, tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    gpu.describe("scale_rows", [8, 8, 4, 4, 8, 8, 8])
    launcher, stream = _launcher(driver, tmp_path, compile_kernel), Stream(driver)
    launcher.launch(launcher.load(SCALE_32), SCALE_ARGUMENTS, stream)
    stream.synchronize()
    half = struct.unpack("<I", struct.pack("<f", 0.5))[0]
    assert gpu.log("^launch") == [
        f"launch scale_rows grid 3 1 1 block 64 1 1 shared 0 parameters "
        f"1000 2000 {half:x} 30 {(1 << 64) - 1:x} 0 0"
    ]
    launcher.close()
    assert gpu.log("module_unload")
    stream.close()


def test_a_launch_can_be_captured(gpu: FakeGpu, driver: Driver, tmp_path: Path) -> None:
    launcher, stream = _launcher(driver, tmp_path), Stream(driver)
    loaded = launcher.load(SCALE_32)
    graph = capture(stream, lambda: launcher.launch(loaded, SCALE_ARGUMENTS, stream))
    assert gpu.log("^run") == []
    for _ in range(3):
        graph.launch(stream)
    stream.synchronize()
    assert gpu.log("^run") == ["run launch scale_rows"] * 3
    graph.close()
    stream.close()
    launcher.close()


def test_loading_in_a_capture_is_an_error(gpu: FakeGpu, driver: Driver, tmp_path: Path) -> None:
    launcher, stream = _launcher(driver, tmp_path), Stream(driver)
    with pytest.raises(EngineError, match="CAPTURE_UNSUPPORTED"):
        capture(stream, lambda: launcher.launch(launcher.load(SCALE_32), SCALE_ARGUMENTS, stream))
    stream.close()


def test_much_shared_memory_is_asked_for(gpu: FakeGpu, driver: Driver, tmp_path: Path) -> None:
    launcher = _launcher(driver, tmp_path, lambda *_: _code(shared_bytes=99 << 10))
    launcher.load(SCALE_32)
    assert gpu.log("function_set") == ["function_set scale_rows 8 101376"]
    launcher.close()


def test_too_much_shared_memory_is_refused(driver: Driver, tmp_path: Path) -> None:
    launcher = _launcher(driver, tmp_path, lambda *_: _code(shared_bytes=(99 << 10) + 1))
    with pytest.raises(EngineError, match="needs 101377 bytes of shared memory, Fake GPU has"):
        launcher.load(SCALE_32)


def test_an_empty_grid_launches_nothing(gpu: FakeGpu, driver: Driver, tmp_path: Path) -> None:
    launcher, stream = _launcher(driver, tmp_path), Stream(driver)
    launcher.launch(launcher.load(SCALE_32), {**SCALE_ARGUMENTS, "num_cols": 0}, stream)
    assert gpu.log("^launch") == []
    stream.close()
    launcher.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": 4100}, r"out = 0x1004 is not a multiple of 16"),
        ({"num_cols": 40}, r"num_cols = 0x28 is not a multiple of 16"),
        ({"num_cols": 1 << 40}, r"num_cols = 1099511627776 is no i32"),
        ({"row_start": 0.5}, r"row_start = 0\.5 is no i64"),
        ({"x": -16}, r"x = -16 is no \*fp32"),
        ({"y": 1}, r"argument y is unknown or was not given; it takes out, x, factor"),
    ],
)
def test_arguments_that_do_not_fit_are_named(change: dict[str, float], message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        pack_arguments(SCALE, {**SCALE_ARGUMENTS, **change})
    assert caught.value.code == "kernel_call"


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(EngineError, match="argument factor is unknown or was not given"):
        pack_arguments(SCALE, {k: v for k, v in SCALE_ARGUMENTS.items() if k != "factor"})


def test_a_table_that_differs_from_its_function_is_refused() -> None:
    pytest.importorskip("triton")
    swapped = replace(SCALE, arguments=SCALE.arguments[::-1])
    with pytest.raises(EngineError, match="the table's order must be the function's"):
        compile_kernel(swapped, SCALE_32, CUDA[2])


def test_table_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"scale_rows\.f32 stand there twice"):
        KernelTable((SCALE, SCALE))
    with pytest.raises(ValueError, match="type 'float'"):
        Argument("x", "float")
    with pytest.raises(ValueError, match="no GPU kernel is called 'cube'"):
        TABLE.kernel("cube")


def test_compiling_and_launching_need_no_compiler(gpu: FakeGpu, tmp_path: Path) -> None:
    """With an empty PATH, and every program that is started written down."""
    pytest.importorskip("triton")
    code = f"""
import sys
started = []
def hook(event, arguments):
    if event == "subprocess.Popen":
        started.append(str(arguments[0]).rpartition("/")[2])
sys.addaudithook(hook)
from pathlib import Path
from tests.ftengine.gpu.fake_driver import FakeGpu
from tests.ftengine.gpu.test_launcher import SCALE_ARGUMENTS, _launcher
from tests.ftengine.gpu.sample_table import SCALE_32
from ftengine.gpu.compile_kernel import compile_kernel
from ftengine.gpu.stream import Stream
gpu = FakeGpu(Path({gpu.path.as_posix()!r}))
gpu.reset()
driver = gpu.driver()
launcher, stream = _launcher(driver, Path({tmp_path.as_posix()!r}), compile_kernel), Stream(driver)
launcher.launch(launcher.load(SCALE_32), SCALE_ARGUMENTS, stream)
stream.synchronize()
print(sorted(set(started)), len(gpu.log("run launch")), flush=True)
"""
    environment = {"PATH": "/nowhere", "PYTHONPATH": os.pathsep.join(sys.path), "HOME": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=environment
    )
    assert done.stdout == "['ptxas'] 1\n", done.stderr


def _code(**changes: int) -> CompiledKernel:
    return replace(CompiledKernel(b"FAKE scale_rows\0", "scale_rows", 2, 32, 0, "0"), **changes)


def _launcher(driver: Driver, folder: Path, compiler=lambda *_: _code()) -> Launcher:
    return Launcher(driver, TABLE, KernelCache(TABLE, folder, compiler, shipped=None))
