"""Native products against the reference, on every target."""

from __future__ import annotations

import pytest
import torch

from ftengine.errors import EngineError
from ftengine.kernels.dispatch import HOST_EMBED_FORMATS
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.reference.linear import embed_rows, linear

from .operand_makers import FORMATS, PLAIN, make_weight, random_rows

BATCHES = (1, 2, 3, 5, 8, 17, 66)
SHAPES = ((40, 32), (33, 64), (64, 576), (100, 1536))
TAILS = {
    **dict.fromkeys(PLAIN, ((10, 46),)),
    **dict.fromkeys(("mxfp4", "mxfp4_gguf"), ((10, 96),)),
    **dict.fromkeys(("nvfp4", "nvfp4_div"), ((10, 16), (70, 80))),
    **dict.fromkeys(("fp8_tensor", "fp8_block", "fp8_block_e8m0"), ((10, 4), (150, 404))),
}
"""Shapes that end inside a chunk or a joined group."""


def shapes_of(fmt: str) -> list[tuple[int, int]]:
    """SHAPES with whole blocks, and the format's own."""
    block = 256 if fmt.endswith("_k") else 32
    fitting = [(rows, -(-cols // block) * block) for rows, cols in SHAPES]
    return [*dict.fromkeys(fitting), *TAILS.get(fmt, ())]


@pytest.mark.parametrize("fmt", FORMATS)
def test_products_equal_the_reference(native: NativeKernels, fmt: str) -> None:
    for rows, cols in shapes_of(fmt):
        weight = make_weight(fmt, rows, cols)
        x, bias = torch.randn(max(BATCHES), cols), torch.randn(rows)
        expected = linear(x, weight, bias=bias)
        for tokens in BATCHES:
            got = native.linear(x[:tokens], weight, bias=bias)
            torch.testing.assert_close(got, expected[:tokens], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_token_is_bit_identical_in_any_batch_and_thread_count(
    native: NativeKernels, fmt: str
) -> None:
    weight = make_weight(fmt, 500, 768)
    x = torch.randn(66, 768)
    whole = native.linear(x, weight)
    for tokens in BATCHES:
        assert torch.equal(native.linear(x[-tokens:], weight), whole[-tokens:])
    for threads in (1, 3):
        native.set_threads(threads)
        assert torch.equal(native.linear(x, weight), whole)


def test_strided_rows_leave_their_neighbours_alone(native: NativeKernels) -> None:
    weight = make_weight("q8_0", 35, 64)
    x = torch.randn(9, 70)[:, 3:67]
    buffer = torch.full((9, 43), 7.0)
    native.linear(x, weight, out=buffer[:, 5:40])
    torch.testing.assert_close(buffer[:, 5:40], linear(x, weight), rtol=2e-5, atol=2e-5)
    assert bool((buffer[:, :5] == 7).all())
    assert bool((buffer[:, 40:] == 7).all())


def test_accumulate_adds_to_what_is_there(native: NativeKernels) -> None:
    weight, x, bias = make_weight("q4_1", 40, 64), torch.randn(3, 64), torch.randn(40)
    out = torch.randn(3, 40)
    expected = out + native.linear(x, weight, bias=bias)
    assert torch.equal(native.linear(x, weight, out=out, bias=bias, accumulate=True), expected)


def test_no_tokens_is_no_work(native: NativeKernels) -> None:
    assert native.linear(torch.empty(0, 64), make_weight("q4_1", 40, 64)).shape == (0, 40)


@pytest.mark.parametrize("fmt", HOST_EMBED_FORMATS)
def test_embedding_rows_are_bit_exact(native: NativeKernels, fmt: str) -> None:
    cols = 512 if fmt.endswith("_k") else 96
    table = torch.from_numpy(random_rows(fmt, 50, cols, 1))
    ids = torch.tensor([3, 0, 49, 3])
    assert torch.equal(native.embed_rows(table, fmt, cols, ids), embed_rows(table, fmt, cols, ids))


def test_wrong_operands_are_refused(native: NativeKernels) -> None:
    weight = make_weight("q4_1", 40, 64)
    with pytest.raises(EngineError, match="shapes do not fit"):
        native.linear(torch.randn(2, 32), weight)
    with pytest.raises(EngineError, match="need float32 rows"):
        native.linear(torch.randn(2, 64).double(), weight)
    with pytest.raises(EngineError, match="contiguous last dimension"):
        native.linear(torch.randn(64, 2).T, weight)
    with pytest.raises(EngineError, match="linear bias: need 40"):
        native.linear(torch.randn(2, 64), weight, bias=torch.randn(39))
    table = torch.from_numpy(random_rows("f32", 50, 96, 1))
    with pytest.raises(EngineError, match="row is out of range"):
        native.embed_rows(table, "f32", 96, torch.tensor([50]))


@pytest.mark.parametrize("fmt", FORMATS)
def test_avx2_and_avx512_agree_to_the_bit(fmt: str) -> None:
    kernels = NativeKernels.load(num_threads=1)
    if "avx512" not in kernels.info().targets:
        pytest.skip("avx512 is not usable here")
    weight, x = make_weight(fmt, 70, 768), torch.randn(11, 768)
    wide = kernels.linear(x, weight)
    kernels.set_target("avx2")
    assert torch.equal(kernels.linear(x, weight), wide)
