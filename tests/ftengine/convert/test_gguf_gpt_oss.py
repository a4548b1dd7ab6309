"""gpt-oss as it is published: mxfp4 experts with biases, from a release and from a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from ftengine.convert.local import convert_folder
from ftengine.loader.ftw import FtwModel
from tests.fakes.quantised import Stored, mxfp4, write_stored
from tests.fakes.tiny_gguf_families import Manner, write_family_gguf
from tests.fakes.tiny_hybrids import build_hybrid
from tests.fakes.tiny_models import write_safetensors
from tests.ftengine.parity.tiny_engines import load_engine, random_ids

PROMPT = random_ids(40, seed=2)
MXFP4 = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}
MATRICES = (".gate_up_proj", ".down_proj")


def quantise(name: str, weight: npt.NDArray[Any]) -> tuple[dict[str, Stored], npt.NDArray[Any]]:
    """Blocks and scales of all experts, and the weight they stand for; it lies transposed."""
    parts = [
        mxfp4(matrix.T.astype(np.float64), "_blocks", "U8", "_scales", "U8") for matrix in weight
    ]
    blocks = np.stack([part.tensors["_blocks"].data for part in parts])
    scales = np.stack([part.tensors["_scales"].data for part in parts])
    stored = {
        name + "_blocks": Stored("U8", blocks.reshape(*scales.shape, 16)),
        name + "_scales": Stored("U8", scales),
    }
    return stored, np.stack([part.values.T for part in parts]).astype(np.float32)


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """`plain` holds the numbers that `hf` has in blocks."""
    plain = build_hybrid("gpt_oss", tmp_path / "plain", changes={"swiglu_limit": 7.0})
    values: dict[str, Any] = {}
    stored: dict[str, Stored] = {}
    for name, weight in load_file(plain / "model.safetensors").items():
        if name.endswith(MATRICES):
            found, values[name] = quantise(name, weight)
            stored |= found
        else:
            stored[name], values[name] = Stored("F32", weight), weight
    write_safetensors(plain / "model.safetensors", values)
    hf = build_hybrid("gpt_oss", tmp_path / "hf", changes={"swiglu_limit": 7.0})
    write_stored(hf, stored)
    config = json.loads((hf / "config.json").read_text("utf-8"))
    (hf / "config.json").write_text(json.dumps(config | MXFP4), "utf-8")
    return tmp_path


def read(folder: Path) -> tuple[set[str], Any]:
    """Formats of the expert banks, and logits."""
    ftw = folder.with_name(folder.name + "-ftw")
    convert_folder(folder, ftw)
    with FtwModel.open(ftw) as model:
        formats = {part.format for bank in model.index.banks for part in bank.parts}
    return formats, load_engine(ftw).runner.logits(PROMPT)


def test_a_gguf_file_gives_what_the_release_gives(released: Path) -> None:
    folder = released / "gguf"
    folder.mkdir()
    write_family_gguf("gpt_oss", released / "plain", folder / "tiny.gguf", Manner(experts=True))
    formats, logits = read(folder)
    own, truth = read(released / "hf")
    _, plain = read(released / "plain")
    assert "mxfp4_gguf" in formats
    assert "mxfp4" in own
    assert float(truth.std()) > 0.1
    assert float((truth - plain).abs().max()) <= 2e-4
    assert float((logits - truth).abs().max()) <= 2e-4
