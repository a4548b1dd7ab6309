"""Experts divided between slots of a device and the CPU: the tokens are those of the CPU alone.

Families whose experts are computed in a way of their own come in the short form, all in the long.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftengine.loader.ftw import FtwModel
from ftengine.loader.load import read_model_config
from tests.fakes.tiny_hybrids import HYBRIDS
from tests.ftengine.parity.test_families import described
from tests.ftengine.parity.tiny_engines import FAMILIES, greedy, load_engine, random_ids

Tiny = Callable[[str], tuple[Path, Path]]
OWN_WAYS = (
    "deepseek_v4",  # a clamp that no fused kernel has
    "minimax_m3",  # gate and up clamped
    "gemma4",  # beside a dense MLP
    "longcat_flash",  # some experts are identities
    "nemotron_h_super",  # no gates, in a narrower width
)
LISTED = [
    name if name in OWN_WAYS else pytest.param(name, marks=pytest.mark.slow)
    for name in (*FAMILIES, *HYBRIDS)
]


@pytest.mark.parametrize("family", LISTED)
def test_split_on_an_emulated_device_gives_the_tokens_of_the_cpu(
    family: str, tiny: Tiny, report: list[dict[str, Any]]
) -> None:
    ftw = tiny(family)[1]
    with FtwModel.open(ftw) as model:
        config = read_model_config(model)
    if not config.num_experts:
        pytest.skip("a dense model")
    prompts = [random_ids(count, seed=count) for count in (5, 30)]
    expected = [item.token_ids for item in greedy(load_engine(ftw), prompts, 10)]
    slots = config.moe_specs[0].router.num_experts_per_tok + 3
    engine = load_engine(
        ftw, device="emulated", strategy="split", expert_slots=slots, device_bytes=1 << 30
    )
    try:
        assert [item.token_ids for item in greedy(engine, prompts, 10)] == expected
        counted = engine.info.experts
        assert counted is not None
        assert counted.fills > 0
        assert counted.on_cpu > 0
    finally:
        engine.close()
    row = {"slots": slots, "fills": counted.fills, "on_cpu": counted.on_cpu}
    report.append(described(family, tiny, "split") | row)
