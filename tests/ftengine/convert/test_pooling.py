"""A sentence-transformers folder tells how its vectors are pooled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftengine.convert.local import convert_folder
from ftengine.convert.pooling import pooling_settings
from tests.fakes.tiny_models import build_tiny

OFF = {"word_embedding_dimension": 64, "pooling_mode_max_tokens": False, "include_prompt": True}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (OFF | {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, 1),
        (OFF | {"pooling_mode_cls_token": True}, 2),
        (OFF | {"pooling_mode_lasttoken": True}, 3),
        ({"pooling_mode": "lasttoken"}, 3),
        ({"pooling_mode": "mean"}, 1),
    ],
)
def test_pooling_becomes_the_key_a_gguf_file_has(config: dict[str, Any], kind: int) -> None:
    assert pooling_settings(config, "qwen3") == ({"qwen3.pooling_type": kind}, ())


def test_no_file_says_nothing() -> None:
    assert pooling_settings(None, "qwen3") == ({}, ())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (OFF | {"pooling_mode_weightedmean_tokens": True}, "weightedmean_tokens"),
        (OFF | {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "cls and mean"),
        (OFF, "none"),
    ],
)
def test_pooling_that_is_not_built_is_told(config: dict[str, Any], words: str) -> None:
    settings, (note,) = pooling_settings(config, "qwen3")
    assert settings == {}
    assert words in note


def test_converted_folder_carries_its_pooling(tmp_path: Path) -> None:
    source = build_tiny("qwen3", tmp_path / "hf")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text(
        json.dumps(OFF | {"pooling_mode_lasttoken": True})
    )
    result = convert_folder(source, tmp_path / "ftw")
    assert result["model_info"]["qwen3.pooling_type"] == 3
    assert json.loads((tmp_path / "ftw" / "config.json").read_text())["model_type"] == "qwen3"
