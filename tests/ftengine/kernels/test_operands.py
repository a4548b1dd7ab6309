"""Operands refuse data that is not what it claims to be; a missing library says how to build it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ftengine.errors import EngineError
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.operands import ExpertBank, PackedWeight
from ftengine.quant.panel32 import ExpertLayout

from .operand_makers import make_bank


def test_a_packed_weight_has_its_size_type_and_alignment() -> None:
    with pytest.raises(EngineError, match="need 640 contiguous uint8"):
        PackedWeight(torch.zeros(639, dtype=torch.uint8), "q4_1", 32, 32)
    with pytest.raises(EngineError, match="uint8"):
        PackedWeight(torch.zeros(640, dtype=torch.int8), "q4_1", 32, 32)
    with pytest.raises(EngineError, match="multiple of 64 bytes"):
        PackedWeight(torch.zeros(656, dtype=torch.uint8)[16:], "q4_1", 32, 32)


def test_a_bank_row_holds_its_parts() -> None:
    bank = make_bank("f32", "f32", 2, 32, 32)
    with pytest.raises(EngineError, match="its bank row has 12288"):
        ExpertBank(bank.data, ExpertLayout(0, 8256, 12288), "f32", "f32", 32, 32)
    with pytest.raises(EngineError, match="multiples of 64"):
        ExpertBank(bank.data, ExpertLayout(0, 8200, 12288), "f32", "f32", 32, 32)
    with pytest.raises(EngineError, match="activation 'tanh' is not built"):
        replace(bank, activation="tanh")


def test_a_missing_library_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cmake -S native") as caught:
        NativeKernels.load(tmp_path / "none.so")
    assert caught.value.code == "native_missing"
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(EngineError, match="does not load") as caught:
        NativeKernels.load(broken)
    assert caught.value.code == "native_missing"


def test_an_unknown_target_names_the_usable_ones() -> None:
    kernels = NativeKernels.load(num_threads=1)
    with pytest.raises(
        EngineError, match=r"cpu_target 'sse9' is not usable here; usable: .*scalar"
    ):
        kernels.set_target("sse9")
