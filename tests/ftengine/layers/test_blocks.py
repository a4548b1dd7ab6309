"""The small blocks: router choices, embeddings of every format, matrices in parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ftengine.kernels.dispatch import EMBED_FORMATS, Kernels, PackedWeight, choose_kernels
from ftengine.layers.embedding import Embedding
from ftengine.layers.linear import Linear, LinearPart
from ftengine.layers.router import Router
from ftengine.quant import FORMATS, format_named, panel32


@pytest.fixture(params=["native", "reference"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return choose_kernels(request.param, None, 2).kernels


def aligned(data: np.ndarray) -> torch.Tensor:  # type: ignore[type-arg]
    raw = torch.zeros(data.size + 64, dtype=torch.uint8)
    start = -raw.data_ptr() % 64
    raw[start : start + data.size] = torch.from_numpy(data.reshape(-1))
    return raw[start : start + data.size]


def packed(values: torch.Tensor) -> PackedWeight:
    rows = format_named("f32").quantize(values.numpy())
    return PackedWeight(aligned(panel32.pack("f32", rows)), "f32", *values.shape)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalize", [True, False])
def test_router_follows_its_definition(score: str, normalize: bool, kernels: Kernels) -> None:
    generator = torch.Generator().manual_seed(3)
    gate = torch.randn(8, 32, generator=generator)
    x = torch.randn(5, 32, generator=generator)
    router = Router(
        linear=Linear((LinearPart(packed(gate), 0),), kernels),
        num_experts=8,
        num_experts_per_tok=3,
        score=score,
        normalize=normalize,
        scale=2.5,
    )
    ids, weights = torch.zeros(5, 3, dtype=torch.int32), torch.zeros(5, 3)
    router.choose(x, torch.zeros(5, 8), ids, weights)
    for row in range(5):
        z = gate.double() @ x[row].double()
        chances = z.softmax(0) if score == "softmax" else z.sigmoid()
        best = sorted(range(8), key=lambda e: -float(chances[e]))[:3]
        wanted = chances[best] / (chances[best].sum() if normalize else 1.0) * 2.5
        assert ids[row].tolist() == best
        assert weights[row].tolist() == pytest.approx(wanted.tolist(), rel=1e-5)


@pytest.mark.parametrize("fmt", [item.name for item in FORMATS])
def test_embedding_gathers_every_format(fmt: str, kernels: Kernels) -> None:
    quant = format_named(fmt)
    rng = np.random.default_rng(0)
    if quant.encode_blocks is None:
        raw = rng.integers(0, 256, (9, quant.row_bytes(256)), dtype=np.uint8)
        raw &= 0x6F  # no NaN and no overflow in float8 and float32 scales
        for block in range(0, raw.shape[1], quant.block_bytes):  # keep scales finite
            for offset in (0, 2, 208):
                if offset + 2 <= quant.block_bytes and (offset != 208 or fmt == "q6_k"):
                    raw[:, block + offset + 1] = 0x2C
    else:
        raw = quant.quantize(rng.normal(0, 1, (9, 256)).astype(np.float32))
    table = Embedding(torch.from_numpy(raw), fmt, 256, 2.0, kernels)
    ids = torch.tensor([8, 0, 3, 3])
    out = table.apply(ids, torch.zeros(4, 256))
    assert np.array_equal(out.numpy(), quant.dequantize(raw)[ids.numpy()] * np.float32(2.0))
    assert (fmt in EMBED_FORMATS) == (fmt in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"))


def test_matrix_in_parts_equals_the_whole(kernels: Kernels) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(80, 48, generator=generator)
    bias = torch.randn(80, generator=generator)
    x = torch.randn(3, 48, generator=generator)
    parts = (
        LinearPart(packed(weight[:50].contiguous()), 0, bias[:50].contiguous()),
        LinearPart(packed(weight[50:].contiguous()), 50, bias[50:].contiguous()),
    )
    split = Linear(parts, kernels)
    expected = x @ weight.T + bias
    out = torch.zeros(3, 80)
    assert torch.allclose(split.apply(x, out), expected, atol=1e-5)
    assert torch.allclose(split.add_to(x, out), 2 * expected, atol=1e-5)
    assert split.rows == 80
