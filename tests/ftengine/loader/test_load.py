"""Loading refuses an index whose formats make no sense for what the tensors are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftengine.convert.local import convert_folder
from ftengine.errors import FormatError
from ftengine.experts.repack import Rows
from ftengine.loader.ftw import FtwModel
from ftengine.loader.load import FtwWeights, kernel_bytes
from ftengine.models.weight_names import RowPick
from ftengine.quant import panel32
from tests.fakes.quantised import build_quantised


@pytest.fixture(scope="module")
def ftw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("load")
    build_quantised("llama", folder, "dsv4")
    convert_folder(folder / "q", folder / "ftw")
    return folder / "ftw"


def changed(ftw: Path, folder: Path, name: str, change: dict[str, Any]) -> FtwModel:
    """The model under an index in which one tensor's entry differs."""
    folder.mkdir()
    for item in ftw.iterdir():
        (folder / item.name).symlink_to(item)
    index = json.loads((ftw / "index.json").read_text())
    next(item for item in index["tensors"] if item["name"] == name).update(change)
    (folder / "index.json").unlink()
    (folder / "index.json").write_text(json.dumps(index))
    return FtwModel.open(folder)


def weights(model: FtwModel) -> FtwWeights:
    return FtwWeights(model, "float32", lambda count: None)


def test_neighbours_of_one_quantised_format_are_joined(ftw: Path) -> None:
    with FtwModel.open(ftw) as model:
        found = weights(model).packed([RowPick(f"layers.0.attn.{part}") for part in "qkv"])
        assert [(item.fmt, item.rows) for item in found] == [("fp8_block_e8m0", 128 + 64 + 64)]
        assert kernel_bytes(model, "float32") > 0


@pytest.mark.parametrize("counts", [(64, 32, 7), (48, 16, 32)])
def test_joined_matrices_lie_as_one_matrix_would(counts: tuple[int, ...], ftw: Path) -> None:
    made = np.random.default_rng(1)
    parts = [made.integers(0, 256, (count, 68), dtype=np.uint8) for count in counts]
    with FtwModel.open(ftw) as model:
        found = weights(model)._pack([Rows(part, "q8_0", 64) for part in parts])
    assert found.rows == sum(counts)
    assert found.data.numpy().tobytes() == panel32.pack("q8_0", np.concatenate(parts)).tobytes()


def test_scales_are_no_weights(ftw: Path, tmp_path: Path) -> None:
    with FtwModel.open(ftw) as model:
        with pytest.raises(FormatError, match=r"e8m0 .*a matrix of weights was expected"):
            weights(model).packed([RowPick("layers.0.attn.q.scales")])
        with pytest.raises(FormatError, match="a plain vector was expected"):
            weights(model).vector("layers.0.attn.q")
    with (
        changed(ftw, tmp_path / "a", "norm", {"format": "e4m3"}) as model,
        pytest.raises(FormatError, match="norm has format e4m3"),
    ):
        weights(model).vector("norm")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("layers.0.attn.q", {"bytes": 128 * 192 - 1}),
        ("layers.0.attn.q", {"shape": [192, 128]}),
        ("layers.0.attn.q", {"scales": "layers.0.mlp.up.scales"}),
        ("layers.0.attn.q.scales", {"shape": [2, 2]}),
        ("layers.0.attn.q.scales", {"bytes": 1}),
    ],
)
def test_sizes_that_do_not_fit_name_the_tensor(
    name: str, change: dict[str, Any], ftw: Path, tmp_path: Path
) -> None:
    with (
        changed(ftw, tmp_path / "a", name, change) as model,
        pytest.raises(FormatError, match=r"layers\.0\.attn\.q"),
    ):
        weights(model).packed([RowPick("layers.0.attn.q")])
