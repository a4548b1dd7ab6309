"""Which value is in force for a model, and who says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ftman.config import load_config
from ftman.service.effective import effective_settings
from tests.ftman.catalog.samples import catalog_in, make_ftw, name_of, new_model


def test_each_layer_is_named(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path)
    model = catalog.commit(name_of("m"), new_model(make_ftw(catalog.paths, 1)))
    published = {"top_k": 7, "temperature": 0.1, "suppress_tokens": [5], "num_beams": 4}
    published |= {"no_repeat_ngram_size": 0, "bad_words_ids": None}
    (model.ftw_path / "generation_config.json").write_text(json.dumps(published))
    config = load_config(
        {"FT_HOME": str(tmp_path), "OLLAMA_CONTEXT_LENGTH": "1024", "FT_KEEP_ALIVE": "1m"}
    )
    found = {item.name: item for item in effective_settings(model, config, 1024)}
    assert (found["temperature"].value, found["temperature"].origin) == (
        0.5,
        "the model (PARAMETER)",
    )
    assert found["stop"].value == ["<end>"]
    assert (found["top_k"].value, found["top_k"].origin) == (7, "generation_config.json")
    assert (found["suppress_tokens"].value, found["suppress_tokens"].origin) == (
        [5],
        "generation_config.json",
    )
    assert found["num_beams"].origin == "generation_config.json, not applied"
    assert not {"no_repeat_ngram_size", "bad_words_ids"} & set(found)
    assert (found["top_p"].value, found["top_p"].origin) == (0.9, "default")
    assert (found["num_ctx"].value, found["num_ctx"].origin) == (1024, "OLLAMA_CONTEXT_LENGTH")
    assert found["keep_alive"].origin == "FT_KEEP_ALIVE"
    own = replace(model, parameters={"num_ctx": 256, "top_k": "many"})
    found = {item.name: item for item in effective_settings(own, config, 256)}
    assert found["num_ctx"].origin == "the model (PARAMETER)"
