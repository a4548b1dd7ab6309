"""A GGUF file gives the model that the checkpoint gives from which it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftengine.convert.local import convert_folder
from tests.fakes.tiny_gguf_families import GGUF_FAMILIES, write_family_gguf
from tests.fakes.tiny_hybrids import build_hybrid
from tests.ftengine.parity.tiny_engines import load_engine, random_ids

PROMPT = random_ids(40, seed=2)
CHANGES: dict[str, dict[str, Any]] = {"qwen2_moe": {"mlp_only_layers": []}}
"""Such files have experts on every layer."""


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_a_gguf_file_and_its_checkpoint_give_the_same_logits(family: str, tmp_path: Path) -> None:
    source = build_hybrid(family, tmp_path / "hf", changes=CHANGES.get(family))
    (tmp_path / "gguf").mkdir()
    write_family_gguf(family, source, tmp_path / "gguf" / "tiny.gguf")
    result = convert_folder(tmp_path / "gguf", tmp_path / "gguf-ftw")
    assert result["family"] == family
    convert_folder(source, tmp_path / "ftw")
    truth = load_engine(tmp_path / "ftw").runner.logits(PROMPT)
    found = load_engine(tmp_path / "gguf-ftw").runner.logits(PROMPT)
    assert float(truth.std()) > 0.1
    assert float((found - truth).abs().max()) <= 2e-5
