"""Kernels read and write nothing behind their operands: each ends where a guard page begins."""

from __future__ import annotations

import ctypes
import mmap
import sys

import pytest
import torch

from ftengine.kernels.native import NativeKernels
from ftengine.kernels.operands import ExpertBank, PackedWeight, RouteSpec

from .operand_makers import FORMATS, make_bank, make_weight, route

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")

COLS = {"nvfp4": 80, "nvfp4_div": 80, "fp8_tensor": 44, "fp8_block": 132, "fp8_block_e8m0": 132}
COLS |= dict.fromkeys(("q4_k", "q5_k", "q6_k"), 256)
_PAGES: list[mmap.mmap] = []


def guarded(source: torch.Tensor) -> torch.Tensor:
    """A copy whose last byte is the last of a page; the next page may not be touched."""
    flat = source.contiguous().view(-1).view(torch.uint8)
    page = mmap.PAGESIZE
    space = -(-flat.numel() // page) * page
    pages = mmap.mmap(-1, space + page)
    _PAGES.append(pages)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + space), ctypes.c_size_t(page), 0) == 0
    whole = torch.frombuffer(pages, dtype=torch.uint8, count=space)
    place = whole[space - flat.numel() :]
    place.copy_(flat)
    return place.view(source.dtype).view(source.shape)


@pytest.mark.parametrize("fmt", FORMATS)
def test_products_stay_inside(native: NativeKernels, fmt: str) -> None:
    cols = COLS.get(fmt, 96)
    weight = make_weight(fmt, 33, cols)
    fenced = PackedWeight(guarded(weight.data), fmt, 33, cols)
    for tokens in (1, 2, 9):
        x = torch.randn(tokens, cols)
        out = guarded(torch.zeros(tokens, 33))
        native.linear(guarded(x), fenced, out=out)
        assert torch.equal(out, native.linear(x, weight))


@pytest.mark.parametrize(
    ("gate_up", "down", "hidden", "inter"),
    [
        ("mxfp4", "mxfp4_gguf", 96, 32),
        ("nvfp4", "nvfp4", 48, 80),
        ("fp8_block", "fp8_block", 132, 36),
    ],
)
def test_routed_layers_stay_inside(
    native: NativeKernels, gate_up: str, down: str, hidden: int, inter: int
) -> None:
    bank = make_bank(gate_up, down, 3, hidden, inter)
    fenced = ExpertBank(guarded(bank.data), bank.layout, gate_up, down, hidden, inter)
    ids, weights = route(9, 2, 3)
    x = torch.randn(9, hidden)
    got = native.expert_ffn(guarded(x), guarded(ids), guarded(weights), fenced)
    assert torch.equal(got, native.expert_ffn(x, ids, weights, bank))


def test_the_choice_of_experts_stays_inside(native: NativeKernels) -> None:
    for experts, slots in ((5, 5), (60, 4), (513, 10)):
        logits, bias = torch.randn(3, experts), torch.randn(experts)
        ids = guarded(torch.zeros(3, slots, dtype=torch.int32))
        weights = guarded(torch.zeros(3, slots))
        native.route(guarded(logits), RouteSpec("softmax", True, 1.0), ids, weights, guarded(bias))
        assert bool((weights > 0).all())
