"""The library as a whole: exports, target objects, pool."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

from ftengine.kernels import abi
from ftengine.kernels.native import NativeKernels, PackedWeight
from ftengine.quant.panel32 import packed_bytes

ROOT = Path(__file__).resolve().parents[2]
HEADERS = sorted((ROOT / "native" / "include" / "ft").glob("*.h"))
HEADER = "\n".join(path.read_text() for path in HEADERS)

ROUNDING = ("avx512bf16",)
"""Targets that round activations, which nobody gets without asking."""

needs_nm = pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")


def symbols(path: Path, *options: str) -> list[tuple[str, str]]:
    """(kind, name) of every symbol that nm lists."""
    text = subprocess.run(["nm", "-C", *options, path], capture_output=True, text=True, check=True)
    found = re.findall(r"^[0-9a-f ]{16} (\S) (.+)$", text.stdout, flags=re.MULTILINE)
    return [(kind, name) for kind, name in found]


@needs_nm
def test_target_objects_export_one_table_and_no_weak_symbol() -> None:
    """A weak symbol built with AVX-512 could replace the baseline's copy of the same function."""
    objects = sorted(ROOT.glob("build/**/src/targets/*.o"))
    if not objects:
        pytest.skip("no object files below build/; build with cmake first")
    for path in objects:
        exported = [(kind, name) for kind, name in symbols(path) if kind.isupper() and kind != "U"]
        assert [kind for kind, _ in exported if kind not in "DRT"] == [], path
        assert len(exported) == 1, (path, exported)
        assert re.fullmatch(r"ft::k\w+Table", exported[0][1])


@needs_nm
def test_only_the_abi_is_exported() -> None:
    found = symbols(abi.find_library(None), "-D", "--defined-only")
    names = {name for kind, name in found if kind == "T"}
    declared = set(re.findall(r"^FT_API [^;(]*?\b(ft_\w+)\(", HEADER, flags=re.MULTILINE))
    assert names == declared


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("linear", abi.LINEAR),
        ("expert_ffn", abi.EXPERT_FFN),
        ("rms_norm", abi.RMS_NORM),
        ("rope_store", abi.ROPE_STORE),
        ("attention", abi.ATTENTION),
        ("embed_rows", abi.EMBED_ROWS),
        ("route", abi.ROUTE),
        ("gated_delta", abi.GATED_DELTA),
        ("short_conv", abi.SHORT_CONV),
        ("run_ops", abi.RUN_OPS),
    ],
)
def test_struct_layouts_have_the_size_of_the_header(name: str, layout: object) -> None:
    size = re.search(rf"sizeof\(ft_{name}_args\) == (\d+)", HEADER)
    assert size is not None
    assert getattr(layout, "size") == int(size[1])  # noqa: B009


def test_a_struct_of_another_size_is_refused() -> None:
    library = abi.load_library(abi.find_library(None))
    for call in (
        "linear",
        "expert_ffn",
        "rms_norm",
        "rope_store",
        "attention",
        "embed_rows",
        "route",
        "gated_delta",
        "short_conv",
    ):
        data = ctypes.create_string_buffer(256)
        data[0:4] = (4).to_bytes(4, "little")
        assert getattr(library, f"ft_{call}")(ctypes.cast(data, ctypes.c_char_p)) == 1


def test_scalar_is_always_there() -> None:
    info = NativeKernels.load(num_threads=1).info()
    assert info.targets[-1] == "scalar"
    assert info.target == next(name for name in info.targets if name not in ROUNDING)
    assert info.threads == 1


def test_stream_read_sees_every_word() -> None:
    kernels = NativeKernels.load(num_threads=2)
    data = torch.arange(1_000_003, dtype=torch.int64)
    assert kernels.stream_read(data) == int(data.sum())


def test_the_way_between_two_workers_is_measured_where_there_are_two() -> None:
    kernels = NativeKernels.load(num_threads=1)
    assert kernels.hand_over_ns() == 0.0
    kernels.set_threads(2)
    assert 0.0 <= kernels.hand_over_ns(200) < 1e9


def test_more_threads_than_cpus_still_agree() -> None:
    kernels = NativeKernels.load(num_threads=1)
    size = packed_bytes("f32", 512, 256)
    weight = PackedWeight(torch.randn(size // 4).view(torch.uint8), "f32", 512, 256)
    x = torch.randn(40, 256)
    alone = kernels.linear(x, weight)
    kernels.set_threads(4 * (os.cpu_count() or 1))
    for _ in range(20):
        assert torch.equal(kernels.linear(x, weight), alone)
    kernels.set_threads(2)


def test_concurrent_callers_wait_for_each_other() -> None:
    kernels = NativeKernels.load(num_threads=2)
    size = packed_bytes("f32", 256, 256)
    weight = PackedWeight(torch.randn(size // 4).view(torch.uint8), "f32", 256, 256)
    inputs = [torch.randn(9, 256) for _ in range(4)]
    expected = [kernels.linear(x, weight) for x in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(30):
            if not torch.equal(kernels.linear(inputs[index], weight), expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_idle_workers_sleep() -> None:
    kernels = NativeKernels.load(num_threads=4)
    kernels.stream_read(torch.zeros(1 << 22, dtype=torch.uint8))
    time.sleep(0.02)
    before = time.process_time()
    time.sleep(0.05)
    assert time.process_time() - before < 0.02
    kernels.set_threads(2)
