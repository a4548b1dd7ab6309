"""The router's choice against the reference and torch's top-k, on every target."""

from __future__ import annotations

import pytest
import torch

from ftengine.errors import EngineError
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.operands import RouteSpec
from ftengine.kernels.reference.route import route as reference_route

SPECS = [
    RouteSpec(score, normalize, scale)
    for score in ("softmax", "sigmoid")
    for normalize in (False, True)
    for scale in (1.0, 2.5)
]


def buffers(tokens: int, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((tokens, slots), -7, dtype=torch.int32), torch.zeros(tokens, slots)


def chosen(
    native: NativeKernels,
    logits: torch.Tensor,
    spec: RouteSpec,
    slots: int,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    ids, weights = buffers(len(logits), slots)
    native.route(logits, spec, ids, weights, bias)
    return ids, weights


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.score}-{s.normalize}-{s.scale}")
def test_choices_and_weights_equal_torch(native: NativeKernels, spec: RouteSpec) -> None:
    for experts, slots in ((4, 1), (8, 2), (60, 4), (64, 8), (128, 8), (513, 10), (5, 5)):
        logits = 3 * torch.randn(50, experts)
        ids, weights = chosen(native, logits, spec, slots)
        scores = logits.sigmoid() if spec.score == "sigmoid" else logits.softmax(-1)
        values, best = scores.topk(slots)
        if spec.normalize:
            values = values / values.sum(-1, keepdim=True)
        assert torch.equal(ids.long(), best)
        torch.testing.assert_close(weights, values * spec.scale, rtol=2e-6, atol=1e-9)
        expected = buffers(50, slots)
        reference_route(logits, spec, *expected)
        assert torch.equal(ids, expected[0])
        torch.testing.assert_close(weights, expected[1], rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_a_bias_chooses_and_does_not_weigh(native: NativeKernels, score: str) -> None:
    spec = RouteSpec(score, True, 1.0)
    logits, bias = torch.randn(40, 32), torch.randn(32)
    ids, weights = chosen(native, logits, spec, 4, bias)
    scores = logits.sigmoid() if score == "sigmoid" else logits.softmax(-1)
    best = (scores + bias).topk(4).indices
    values = scores.gather(1, best)
    assert torch.equal(ids.long(), best)
    torch.testing.assert_close(weights, values / values.sum(-1, keepdim=True), rtol=2e-6, atol=1e-9)


def test_equal_scores_go_to_the_lowest_ids(native: NativeKernels) -> None:
    for spec in (RouteSpec("softmax", True, 1.0), RouteSpec("sigmoid", False, 1.0)):
        flat = torch.zeros(3, 40)
        flat[1, 20:] = 1.0
        flat[2] = torch.arange(40) % 2
        ids, _ = chosen(native, flat, spec, 4)
        assert ids.tolist() == [[0, 1, 2, 3], [20, 21, 22, 23], [1, 3, 5, 7]]
        expected = buffers(3, 4)
        reference_route(flat, spec, *expected)
        assert torch.equal(ids, expected[0])


def test_logits_that_sigmoid_rounds_to_one_keep_their_order(native: NativeKernels) -> None:
    logits = torch.tensor([[20.0, 40.0, 30.0, 0.0]])
    ids, weights = chosen(native, logits, RouteSpec("sigmoid", False, 1.0), 3)
    assert ids.tolist() == [[1, 2, 0]]
    torch.testing.assert_close(weights, torch.ones(1, 3))


def test_a_token_is_bit_identical_in_any_batch_and_thread_count(native: NativeKernels) -> None:
    logits = torch.randn(300, 128)
    whole = chosen(native, logits, SPECS[2], 8)
    for tokens in (1, 3, 17, 200):
        part = chosen(native, logits[:tokens], SPECS[2], 8)
        assert torch.equal(part[0], whole[0][:tokens])
        assert torch.equal(part[1], whole[1][:tokens])
    native.set_threads(3)
    assert torch.equal(chosen(native, logits, SPECS[2], 8)[1], whole[1])


def test_strange_logits_give_valid_ids_and_are_not_hidden(native: NativeKernels) -> None:
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor(
        [[nan] * 20, [1.0] * 19 + [nan], [0.0] * 19 + [inf], [-inf] * 18 + [1, 2]]
    )
    ids, weights = chosen(native, logits, RouteSpec("softmax", True, 1.0), 2)
    assert ids.tolist() == [[0, 1], [0, 1], [19, 0], [19, 18]]
    assert bool(weights[:3].isnan().any(dim=1).all())
    torch.testing.assert_close(weights[3], torch.tensor([2.0, 1.0]).softmax(0))
    ids, weights = chosen(native, logits, RouteSpec("sigmoid", False, 1.0), 2)
    assert ids.tolist() == [[0, 1], [0, 1], [19, 0], [19, 18]]
    assert bool(weights[0].isnan().all())
    assert weights[2].tolist() == [1.0, 0.5]


def test_strided_logits(native: NativeKernels) -> None:
    wide = torch.randn(9, 50)
    ids, weights = chosen(native, wide[:, 3:35], SPECS[0], 3)
    dense = chosen(native, wide[:, 3:35].contiguous(), SPECS[0], 3)
    assert torch.equal(ids, dense[0])
    assert torch.equal(weights, dense[1])


def test_wrong_operands_are_refused(native: NativeKernels) -> None:
    with pytest.raises(EngineError, match="shapes do not fit"):
        chosen(native, torch.randn(2, 4), SPECS[0], 5)
    with pytest.raises(EngineError, match="route bias: need 4"):
        chosen(native, torch.randn(2, 4), SPECS[0], 2, torch.zeros(5))
    with pytest.raises(EngineError, match="route: need contiguous int32 ids"):
        native.route(torch.randn(2, 4), SPECS[0], torch.zeros(2, 2), torch.zeros(2, 2))
    with pytest.raises(EngineError, match="router score 'argmax' is not built"):
        RouteSpec("argmax", True, 1.0)
