"""Latent attention and its indexer, launched as an engine launches them, against the reference."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftengine.gpu.latent import LatentLaunches, narrowed
from ftengine.kernels.dispatch import ReferenceKernels
from ftengine.kernels.latent_operands import Chosen, IndexHeads, LatentHeads, LatentWeights, Turn
from ftengine.kernels.operands import HeadLayout
from tests.ftengine.kernels.operand_makers import Paged, make_paged
from tests.ftengine.kernels.triton.interpreter import Interpreter

HEADS = LatentHeads(count=3, nope_dim=10, rope_dim=8, value_dim=12, kv_rank=24, q_rank=0)
REFERENCE = ReferenceKernels()
NAN = float("nan")
MOST_POSITIONS = 512


class Launches(LatentLaunches):
    """GpuKernels' part on the interpreter, launch by launch; work memory begins as NaN."""

    def __init__(self, interpreter: Interpreter, tokens: int, top_k: int, dot: str = "f32") -> None:
        self.tools: Any = SimpleNamespace(launch=interpreter.run, dot=dot)
        slots = torch.full((tokens, top_k), -7, dtype=torch.int32)
        self._choice = Chosen(slots, torch.full((tokens,), -7, dtype=torch.int32))

    @property
    def arena(self) -> Any:
        def take(*shape: int) -> torch.Tensor:
            return torch.full(shape, NAN)

        return SimpleNamespace(reset=lambda: None, take=take)

    @property
    def choice(self) -> Chosen:
        return self._choice


@dataclass(frozen=True)
class Case:
    """A step over paged latents."""

    paged: Paged
    weights: LatentWeights
    turn: Turn
    q: torch.Tensor


def make_turn(half: int, interleaved: bool) -> Turn:
    angles = torch.rand(MOST_POSITIONS, half) * 6
    return Turn(angles.cos(), angles.sin(), interleaved)


def make_case(
    sequences: list[tuple[int, int]],
    interleaved: bool = True,
    temper: bool = False,
    dtype: torch.dtype = torch.float32,
    heads: LatentHeads = HEADS,
) -> Case:
    paged = make_paged(HeadLayout(heads.count, 1, heads.kept), sequences, dtype)
    weights = LatentWeights(
        torch.rand(heads.kv_rank) + 0.5,
        1e-6,
        torch.randn(heads.count, heads.nope_dim, heads.kv_rank) / 3,
        torch.randn(heads.count, heads.kv_rank, heads.value_dim) / 3,
        0.2,
        torch.rand(MOST_POSITIONS) + 0.5 if temper else None,
    )
    turn = make_turn(heads.rope_dim // 2, interleaved)
    # rows that lie apart, as in a wider buffer
    q = torch.randn(paged.positions.shape[0], heads.count * heads.head_dim + 5)
    return Case(paged, weights, turn, q[:, : heads.count * heads.head_dim])


def attended(kernels: Any, case: Case, chosen: Chosen | None = None) -> torch.Tensor:
    width = HEADS.count * HEADS.value_dim
    out = torch.full((case.q.shape[0], width + 3), NAN)
    paged = case.paged
    kernels.latent_attention(
        case.q, HEADS, case.weights, case.turn, paged, paged.keys, out[:, :width], chosen
    )
    return out[:, :width]


@pytest.mark.parametrize("interleaved", [True, False])
def test_latents_and_keys_are_stored(interpreter: Interpreter, interleaved: bool) -> None:
    case = make_case([(2, 18)], interleaved)
    slots = case.paged.slots.clone()
    slots[1] = -1
    wide = torch.randn(2, 40)
    parts = wide[:, 3:27], wide[:, 27:35]
    pools = case.paged.keys.clone(), case.paged.keys.clone()
    for kernels, pool in zip((Launches(interpreter, 2, 1), REFERENCE), pools, strict=True):
        kernels.latent_store(*parts, case.weights, case.turn, case.paged.positions, slots, pool)
    assert torch.allclose(*pools, atol=1e-5, equal_nan=True)
    assert not torch.allclose(pools[0], case.paged.keys, equal_nan=True)


@pytest.mark.parametrize(("interleaved", "temper"), [(True, False), (False, True)])
def test_decoding_agrees_with_the_reference(
    interpreter: Interpreter, interleaved: bool, temper: bool
) -> None:
    case = make_case([(1, 300), (1, 5)], interleaved, temper)
    found = attended(Launches(interpreter, 2, 1), case)
    assert torch.allclose(found, attended(REFERENCE, case), atol=2e-5)


def test_a_chunk_agrees_with_the_reference_and_with_decoding(interpreter: Interpreter) -> None:
    """A token's sums do not depend on what is in the step with it."""
    case = make_case([(2, 290), (3, 3)], temper=True)
    found = attended(Launches(interpreter, 5, 1), case)
    assert torch.allclose(found, attended(REFERENCE, case), atol=2e-5)
    alone = Case(
        Paged(
            case.paged.positions[1:2],
            case.paged.slots[1:2],
            torch.tensor([0, 1]).int(),
            case.paged.context_len[:1],
            case.paged.page_table[:1],
            case.paged.keys,
            case.paged.values,
        ),
        case.weights,
        case.turn,
        case.q[1:2],
    )
    assert torch.allclose(attended(Launches(interpreter, 1, 1), alone), found[1:2], atol=1e-6)


def test_more_heads_than_a_program_takes_and_bfloat16_pools(interpreter: Interpreter) -> None:
    heads = LatentHeads(count=19, nope_dim=16, rope_dim=8, value_dim=16, kv_rank=16, q_rank=0)
    case = make_case([(1, 20)], dtype=torch.bfloat16, heads=heads)
    out, expected = torch.full((2, 1, 19 * 16), NAN)
    half = LatentWeights(
        case.weights.norm_weight,
        1e-6,
        case.weights.key_up.bfloat16(),
        case.weights.value_up.bfloat16(),
        0.2,
    )
    exact = LatentWeights(
        half.norm_weight, 1e-6, half.key_up.float(), half.value_up.float(), half.scale
    )
    paged = case.paged
    Launches(interpreter, 1, 1, "bf16").latent_attention(
        case.q, heads, half, case.turn, paged, paged.keys, out
    )
    REFERENCE.latent_attention(case.q, heads, exact, case.turn, paged, paged.keys, expected)
    assert torch.allclose(out, expected, atol=3e-2)


def make_index(count: int, size: int, top_k: int) -> IndexHeads:
    norm = torch.rand(size) + 0.5, torch.randn(size)
    return IndexHeads(count, size, top_k, (count * size) ** -0.5, norm[0], norm[1], 1e-6)


@pytest.mark.parametrize("interleaved", [True, False])
def test_an_indexers_keys_are_stored(interpreter: Interpreter, interleaved: bool) -> None:
    index, turn = make_index(3, 20, 4), make_turn(4, interleaved)
    paged = make_paged(HeadLayout(3, 1, 20), [(2, 18)])
    slots = paged.slots.clone()
    slots[0] = -1
    key = torch.randn(2, 31)[:, :20]
    pools = paged.keys.clone(), paged.keys.clone()
    for kernels, pool in zip((Launches(interpreter, 2, 4), REFERENCE), pools, strict=True):
        kernels.index_store(key, index, turn, paged.positions, slots, pool)
    assert torch.allclose(*pools, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("sequences", [[(1, 300), (1, 7), (1, 3)], [(3, 40), (4, 4)]])
def test_the_best_keys_are_chosen(
    interpreter: Interpreter, sequences: list[tuple[int, int]]
) -> None:
    """Decoding and a chunk; tokens with fewer keys than are chosen see all of them."""
    index, turn = make_index(5, 20, 6), make_turn(4, True)
    paged = make_paged(HeadLayout(5, 1, 20), sequences)
    tokens = paged.positions.shape[0]
    q, factors = torch.randn(tokens, 100), torch.randn(tokens, 8)[:, :5]
    mine = Launches(interpreter, tokens, 6)
    assert not mine.sees_all(paged, 6)
    found = mine.index_choose(q, factors, index, turn, paged, paged.keys)
    expected = REFERENCE.index_choose(q, factors, index, turn, paged, paged.keys)
    assert found.counts.tolist() == expected.counts.tolist()
    for row, count in enumerate(found.counts.tolist()):
        assert found.slots[row, :count].tolist() == expected.slots[row, :count].tolist()


def test_of_equal_scores_the_earlier_keys_are_taken(interpreter: Interpreter) -> None:
    """Keys that are all alike, but for two that are better."""
    index = make_index(1, 16, 5)
    turn = Turn(torch.ones(MOST_POSITIONS, 1), torch.zeros(MOST_POSITIONS, 1), True)
    paged = make_paged(HeadLayout(1, 1, 16), [(1, 40)])
    paged.keys[:] = 1.0
    page = paged.page_table[0]
    for token in (17, 33):
        paged.keys[int(page[token // 16]), 0, token % 16] = 2.0
    mine = Launches(interpreter, 1, 5)
    found = mine.index_choose(torch.ones(1, 16), torch.ones(1, 1), index, turn, paged, paged.keys)
    expected = [int(page[token // 16]) * 16 + token % 16 for token in (0, 1, 2, 17, 33)]
    assert found.slots[0].tolist() == expected


@pytest.mark.parametrize("sequences", [[(1, 300), (1, 9)], [(2, 290), (3, 3)]])
def test_attention_to_chosen_keys(
    interpreter: Interpreter, sequences: list[tuple[int, int]]
) -> None:
    """Decoding and a chunk; more keys than a cut holds are chosen of the longer context."""
    case = make_case(sequences)
    top_k = 270
    index, turn = make_index(2, 16, top_k), make_turn(4, True)
    keys = torch.randn(case.paged.keys.shape[0], 1, 16, 16)
    tokens = case.q.shape[0]
    q, factors = torch.randn(tokens, 32), torch.randn(tokens, 2)
    mine = Launches(interpreter, tokens, top_k)
    chosen = mine.index_choose(q, factors, index, turn, case.paged, keys)
    theirs = REFERENCE.index_choose(q, factors, index, turn, case.paged, keys)
    found = attended(mine, case, chosen)
    assert torch.allclose(found, attended(REFERENCE, case, theirs), atol=2e-5)


def test_matrices_become_narrow_only_where_nothing_is_lost() -> None:
    exact = torch.randn(2, 3, 4).bfloat16().float()
    assert narrowed(exact).dtype == torch.bfloat16
    assert narrowed(exact + 1e-5).dtype == torch.float32
