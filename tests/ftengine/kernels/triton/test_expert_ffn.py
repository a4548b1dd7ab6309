"""Routed experts, a few tokens and grouped, against the reference; who computes which pair."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ftengine.errors import EngineError
from ftengine.kernels.operands import ExpertBank
from ftengine.kernels.reference.expert_ffn import expert_ffn
from ftengine.kernels.triton import builds, expert_calls
from ftengine.quant import panel32
from tests.ftengine.kernels.operand_makers import make_bank, make_weight
from tests.ftengine.kernels.triton.interpreter import Interpreter

NAN = float("nan")
QUICK = ("mxfp4", "nvfp4")


def formats(quick: tuple[str, ...]) -> list[object]:
    slow = [pytest.param(fmt, marks=pytest.mark.slow) for fmt in builds.FORMATS if fmt not in quick]
    return [*quick, *slow]


def with_bias(bank: ExpertBank) -> ExpertBank:
    """Every expert's row gets bfloat16 biases behind its matrices."""
    rows, size = bank.data.shape
    count = 2 * bank.inter + bank.hidden
    biases = torch.randn(rows, count).bfloat16().view(torch.uint8)
    room = -(-2 * count // 64) * 64
    data = torch.zeros(rows, size + room, dtype=torch.uint8)
    data[:, :size] = bank.data
    data[:, size : size + 2 * count] = biases
    layout = replace(
        bank.layout,
        row_bytes=size + room,
        gate_up_bias_offset=size,
        down_bias_offset=size + 4 * bank.inter,
    )
    return replace(bank, data=data, layout=layout, fmt_bias="bf16")


def without_gates(fmt: str, experts: int, hidden: int, inter: int) -> ExpertBank:
    """The first part of an expert is up alone, which leaves room behind it."""
    layout = panel32.expert_layout(fmt, fmt, hidden, inter)
    data = torch.zeros(experts, layout.row_bytes, dtype=torch.uint8)
    for expert in range(experts):
        parts = make_weight(fmt, inter, hidden, expert), make_weight(fmt, hidden, inter, 9 + expert)
        for at, part in zip((layout.gate_up_offset, layout.down_offset), parts, strict=True):
            data[expert, at : at + part.data.numel()] = part.data
    return ExpertBank(data, layout, fmt, fmt, hidden, inter, activation="relu2", gated=False)


def decode(
    interpreter: Interpreter,
    bank: ExpertBank,
    x: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor,
    cpu_parts: torch.Tensor | None = None,
) -> torch.Tensor:
    pairs = rows.numel()
    inner = torch.full((pairs, bank.inter), NAN)
    parts = torch.full((pairs, bank.hidden), NAN)
    out = torch.full((x.shape[0], bank.hidden), NAN)
    interpreter.run(
        expert_calls.gate_up(x, rows, bank, inner),
        expert_calls.down(inner, rows, bank, parts),
        expert_calls.merge(
            parts, parts if cpu_parts is None else cpu_parts, rows, weights, out, False
        ),
    )
    return out


def grouped(
    interpreter: Interpreter, bank: ExpertBank, x: torch.Tensor, rows: torch.Tensor, item: str
) -> torch.Tensor:
    """Every pair's result. Shape: [tokens, k, hidden]."""
    dtype, dot = (torch.bfloat16, "bf16") if item == "bf16" else (torch.float32, "f32")
    groups = expert_calls.group_pairs(rows)
    arranged = torch.full(x.shape, NAN, dtype=dtype)
    inner = torch.full((rows.numel(), bank.inter), NAN, dtype=dtype)
    parts = torch.full((rows.numel(), bank.hidden), NAN)
    interpreter.run(
        expert_calls.arrange(x, bank.fmt_gate_up, arranged),
        expert_calls.gate_up_gemm(arranged, groups, rows.shape[1], bank, inner, dot),
        expert_calls.down_gemm(inner, groups, bank, parts, dot),
    )
    return parts.view(*rows.shape, bank.hidden)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def sizes(fmt: str) -> tuple[int, int]:
    """Blocks of 128 columns need more than one of them to be told apart."""
    if fmt == "q4_k":
        return 256, 256
    return (160, 32) if fmt.startswith("fp8_block") else (64, 32)


@pytest.mark.parametrize("fmt", formats(QUICK))
def test_decoding_agrees_with_the_reference(interpreter: Interpreter, fmt: str) -> None:
    bank = make_bank(fmt, fmt, 2, *sizes(fmt))
    x, rows, weights = torch.randn(1, bank.hidden), torch.tensor([[1, 0]]).int(), torch.rand(1, 2)
    found = decode(interpreter, bank, x, rows, weights)
    assert error(found, expert_ffn(x, rows, weights, bank)) < 2e-6


@pytest.mark.parametrize("fmt", formats(("q4_1",)))
def test_grouped_float32_agrees_with_the_reference(interpreter: Interpreter, fmt: str) -> None:
    bank = make_bank(fmt, fmt, 2, *sizes(fmt))
    x, rows = torch.randn(3, bank.hidden), torch.tensor([[1, 0], [0, 1], [1, 0]]).int()
    found = grouped(interpreter, bank, x, rows, "f32")
    for place in range(2):
        one = rows[:, place : place + 1].contiguous()
        expected = expert_ffn(x, one, torch.ones(3, 1), bank)
        assert error(found[:, place], expected) < 3e-6


@pytest.mark.parametrize("fmt", formats(("bf16",)))
def test_grouped_bfloat16_is_as_good_as_bfloat16_is(interpreter: Interpreter, fmt: str) -> None:
    bank = make_bank(fmt, fmt, 2, *sizes(fmt))
    x, rows = torch.randn(2, bank.hidden), torch.tensor([[1], [0]]).int()
    found = grouped(interpreter, bank, x, rows, "bf16")[:, 0]
    expected = expert_ffn(x, rows, torch.ones(2, 1), bank)
    # the interpreter cuts bits off where a device rounds, four times in a row, all to one side
    assert 1e-5 < error(found, expected) < 2.5e-2


@pytest.mark.parametrize("activation", builds.ACTIVATIONS)
def test_activations_and_biases(interpreter: Interpreter, activation: str) -> None:
    bank = with_bias(make_bank("f32", "f32", 2, 32, 16, activation))
    x, rows, weights = torch.randn(1, 32) * 40, torch.tensor([[1, 0]]).int(), torch.rand(1, 2)
    found = decode(interpreter, bank, x, rows, weights)
    assert error(found, expert_ffn(x, rows, weights, bank)) < 2e-6


@pytest.mark.parametrize("activation", ["silu_clamp", "swiglu_clamp"])
def test_grouped_clamps_agree_with_the_reference(interpreter: Interpreter, activation: str) -> None:
    bank = make_bank("f32", "f32", 2, 32, 16, activation)
    x, rows = torch.randn(2, 32) * 40, torch.tensor([[1], [0]]).int()
    found = grouped(interpreter, bank, x, rows, "f32")[:, 0]
    assert error(found, expert_ffn(x, rows, torch.ones(2, 1), bank)) < 3e-6


def test_experts_without_gates(interpreter: Interpreter) -> None:
    """A part of a panel, alone and grouped."""
    bank = without_gates("bf16", 2, 64, 80)
    x, rows, weights = torch.randn(2, 64), torch.tensor([[1], [0]]).int(), torch.rand(2, 1)
    expected = expert_ffn(x, rows, weights, bank)
    assert error(decode(interpreter, bank, x, rows, weights), expected) < 2e-6
    found = grouped(interpreter, bank, x, rows, "f32")[:, 0] * weights
    assert error(found, expected) < 3e-6


def test_a_row_below_zero_is_the_cpus(interpreter: Interpreter) -> None:
    bank = make_bank("f32", "f32", 2, 32, 16)
    x, rows, weights = torch.randn(1, 32), torch.tensor([[1, -1]]).int(), torch.rand(1, 2)
    cpu_parts = torch.full((2, 32), NAN)
    cpu_parts[1] = expert_ffn(x, torch.tensor([[0]]).int(), torch.ones(1, 1), bank)
    found = decode(interpreter, bank, x, rows, weights, cpu_parts)
    expected = expert_ffn(x, torch.tensor([[1, 0]]).int(), weights, bank)
    assert error(found, expected) < 2e-6


def test_a_pair_does_not_depend_on_the_batch(interpreter: Interpreter) -> None:
    bank = make_bank("mxfp4", "mxfp4", 2, 64, 32)
    x, rows, weights = torch.randn(2, 64), torch.tensor([[1], [0]]).int(), torch.rand(2, 1)
    both = decode(interpreter, bank, x, rows, weights)
    alone = decode(interpreter, bank, x[1:], rows[1:], weights[1:])
    assert torch.equal(both[1:], alone)


def test_formats_without_a_kernel_are_refused_by_name() -> None:
    with pytest.raises(EngineError, match="no GPU kernel reads q6_k weights"):
        builds.gate_up("q6_k")


def test_activations_without_a_kernel_are_refused_by_name() -> None:
    with pytest.raises(EngineError, match="no GPU kernel computes experts with the activation xie"):
        builds.gate_up("bf16", "xielu")


@pytest.mark.parametrize(("tokens", "places", "experts"), [(3, 2, 5), (90, 3, 7), (600, 2, 3)])
def test_the_device_groups_pairs_as_the_host_does(
    interpreter: Interpreter, tokens: int, places: int, experts: int
) -> None:
    """Experts without a row are left out; what is left of the tiles says 0 pairs."""
    ids = torch.stack([torch.randperm(experts)[:places] for _ in range(tokens)]).int()
    row_of = torch.arange(experts, dtype=torch.int32) * 2 + 1
    row_of[1] = -1
    wanted = expert_calls.group_pairs(row_of[ids.long()])
    tiles = expert_calls.tiles_of(ids.numel(), experts)
    assert wanted.tiles.shape[0] <= tiles
    found = expert_calls.Grouping(
        torch.full((ids.numel(),), -7, dtype=torch.int32),
        torch.full((tiles, 3), -7, dtype=torch.int32),
    )
    counts = torch.full((experts,), -7, dtype=torch.int32)
    interpreter.run(*expert_calls.group_on_device(ids, row_of, counts, found))
    count = wanted.pairs.numel()
    assert int(counts.sum()) == count
    assert torch.equal(found.pairs[:count], wanted.pairs)
    assert torch.equal(found.tiles[: len(wanted.tiles)], wanted.tiles)
    assert not found.tiles[len(wanted.tiles) :, 2].any()


def test_pairs_are_grouped_in_tiles_of_one_expert() -> None:
    rows = torch.tensor([[3, 1], [1, -1], [3, 1]]).int()
    groups = expert_calls.group_pairs(rows)
    assert groups.pairs.tolist() == [1, 2, 5, 0, 4]
    assert groups.tiles.tolist() == [[1, 0, 3], [3, 3, 2]]
    many = expert_calls.one_group(150)
    assert many.tiles.tolist() == [[0, 0, 64], [0, 64, 64], [0, 128, 22]]
