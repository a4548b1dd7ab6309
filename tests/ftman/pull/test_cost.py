"""What a pull would cost: headers by ranges, nothing fetched twice, sizes of families unbuilt."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftman.convert.job import COMMAND
from ftman.errors import FtmanError, IntegrityError, NotFoundError, UnsupportedError
from ftman.forecast import forecast_of
from ftman.pull.cost import PullCost, require_plan
from ftman.pull.jobs import PullOptions
from tests.fakes.big_models import DEEPSEEK_CONFIG, GLM_CONFIG, checkpoint, deepseek_fp4, glm_nvfp4
from tests.fakes.hub import COMMIT, BadHub, SparseFile
from tests.ftman.pull.conftest import Station, gguf_bytes, options

DATA = gguf_bytes(700_001)
PATH = f"/org/tiny/resolve/{COMMIT}/tiny.gguf"


def cost(station: Station, name: str, given: PullOptions, **how: Any) -> PullCost:
    async def ask() -> PullCost | None:
        manager = station.manager(given)
        try:
            return await manager.cost(name, insecure=True, **how)
        finally:
            await manager.close()

    found = asyncio.run(ask())
    assert found is not None
    return found


def test_the_cost_is_known_from_headers(station: Station, hub: BadHub) -> None:
    hub.add_repo("org/tiny", {"tiny.gguf": DATA})
    given = replace(options(ftw_bytes=9_000_000), hub_endpoint=hub.url)
    found = cost(station, "hf.co/org/tiny:tiny.gguf", given)
    assert (found.download_bytes, found.num_files) == (len(DATA), 1)
    assert (found.disk_bytes, found.fits_disk) == (9_000_000, True)
    assert found.need_disk_bytes >= 9_000_000
    assert not found.up_to_date
    assert hub.bytes_sent(PATH) <= 64


def test_what_a_plan_fetched_is_not_fetched_again(station: Station, hub: BadHub) -> None:
    hub.add_repo("org/tiny", {"tiny.gguf": DATA})
    given = replace(options(head=300_000), hub_endpoint=hub.url)
    name = "hf.co/org/tiny:tiny.gguf"
    cost(station, name, given)
    assert hub.bytes_sent(PATH) == 300_000
    station.pull(name, given)
    assert station.weights(name) == DATA
    assert hub.bytes_sent(PATH) == len(DATA)
    assert station.leftovers() == []
    assert cost(station, name, given).up_to_date


def test_a_wrong_head_is_found_and_dropped(station: Station, hub: BadHub) -> None:
    hub.add_repo("org/tiny", {"tiny.gguf": DATA})
    given = replace(options(head=300_000), hub_endpoint=hub.url)
    name = "hf.co/org/tiny:tiny.gguf"
    hub.script(PATH, "flip@1000", "ok")
    cost(station, name, given)
    with pytest.raises(IntegrityError, match="digest mismatch"):
        station.pull(name, given)
    station.pull(name, given)
    assert station.weights(name) == DATA


def test_the_same_pull_under_way_is_left_alone(station: Station, hub: BadHub) -> None:
    hub.add_repo("org/tiny", {"tiny.gguf": DATA})
    hub.script(PATH, "slow:200000")
    given = replace(options(), hub_endpoint=hub.url)

    async def both() -> PullCost | None:
        manager = station.manager(given)
        pulling = manager.pull("hf.co/org/tiny:tiny.gguf")
        await anext(pulling)
        try:
            return await manager.cost("hf.co/org/tiny:tiny.gguf")
        finally:
            await pulling.aclose()  # type: ignore[attr-defined]
            await manager.close()

    assert asyncio.run(both()) is None


def test_an_unknown_name_and_an_unbuilt_family_are_refused_as_the_pull_refuses_them(
    station: Station,
) -> None:
    with pytest.raises(NotFoundError):
        cost(station, "no-such-model", options())
    with pytest.raises(UnsupportedError, match="not built yet"):
        cost(station, "glm-5.2", options(families=["llama"]))


def test_a_server_without_ranges_leaves_the_plan_open(station: Station, hub: BadHub) -> None:
    found = cost(station, hub.add("/x/tiny.gguf", DATA, "no-range"), options())
    assert (found.plan, found.note) == (None, "its server gives only whole files")
    assert found.download_bytes == len(DATA)


def test_a_derived_model_costs_the_disk_that_it_takes_not_its_sources(station: Station) -> None:
    dense, moe = (cost(station, name, options()) for name in ("smollm2", "smollm2-moe"))
    assert moe.download_bytes == dense.download_bytes
    assert moe.disk_bytes > 4 * dense.disk_bytes
    assert moe.need_disk_bytes > moe.disk_bytes


def test_a_wheel_says_that_it_has_no_headers(station: Station) -> None:
    found = cost(station, "smollm2:135m", options(families=["llama"]))
    assert found.download_bytes == 92871040
    with pytest.raises(FtmanError, match="a wheel has no headers"):
        require_plan(found)


@pytest.mark.parametrize(
    ("name", "repo", "expected"),
    [
        pytest.param(
            *("glm-5.2", "nvidia/GLM-5.2-NVFP4", (451.8, 78, 75, 256, 8)), marks=pytest.mark.slow
        ),
        ("deepseek-v4-flash", "deepseek-ai/DeepSeek-V4-Flash", (158.6, 43, 43, 256, 6)),
    ],
)
def test_a_model_of_hundreds_of_gigabytes_is_sized_by_its_headers(
    station: Station, hub: BadHub, name: str, repo: str, expected: tuple[Any, ...]
) -> None:
    config, rows = {"glm-5.2": (GLM_CONFIG, glm_nvfp4)}.get(name, (DEEPSEEK_CONFIG, deepseek_fp4))
    files = checkpoint(config, rows())
    hub.add_repo(repo, files)
    given = replace(options(), hub_endpoint=hub.url, converter=COMMAND)
    found = cost(station, name, given, any_family=True)
    plan = require_plan(found)
    download, layers, moe_layers, experts, per_token = expected
    assert found.download_bytes / 1e9 == pytest.approx(download, abs=0.1)
    assert (plan["num_layers"], plan["num_moe_layers"]) == (layers, moe_layers)
    assert (plan["num_experts"], plan["num_experts_per_tok"]) == (experts, per_token)
    shards = [file for file in files.values() if isinstance(file, SparseFile)]
    assert sum(item.sent for item in hub.asked) < 100e6
    assert plan["expert_bytes"] < sum(map(len, shards)) < 1.2 * plan["expert_bytes"]
    assert plan["expert_row_bytes"] * moe_layers * experts >= plan["expert_bytes"]
    assert station.leftovers() == []
    answer = asyncio.run(forecast_of(plan, None, "rtx-pro-6000-workstation", 65536))
    assert answer["fits"]
    assert answer["tier"] == "ram"
    assert answer["context_tokens"] == 65536
    assert 5 < answer["tokens_per_s"] < 100
    small = asyncio.run(forecast_of(plan, None, "rtx-4060-laptop", None))
    assert not small["fits"] or small["tier"] == "disk"


def test_headers_of_many_shards_come_side_by_side(
    station: Station, hub: BadHub, tmp_path: Path
) -> None:
    text = b'{"w":{"dtype":"U8","shape":[1000000],"data_offsets":[0,1000000]}}'
    head = struct.pack("<Q", len(text)) + text
    names = [f"model-{n:05d}-of-00012.safetensors" for n in range(1, 13)]
    hub.add_repo(
        "org/many",
        {"config.json": b"{}", **{name: SparseFile(head, len(head) + 1_000_000) for name in names}},
    )
    given = replace(options(), hub_endpoint=hub.url)
    found = cost(station, "hf.co/org/many", given)
    assert found.num_files == 13
    firsts = [hub.requests(f"/org/many/resolve/{COMMIT}/{name}")[0] for name in names]
    assert all(item.start == 0 for item in firsts)
