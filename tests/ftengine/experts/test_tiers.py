"""Experts left on disk: the same tokens, said, and not counted as this process's own memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ftengine.convert.local import convert_folder
from ftengine.errors import CapacityError, LoadError
from ftengine.loader import load
from ftengine.loader.ftw import FtwModel
from ftengine.loader.mapped import MappedRows, can_map, map_rows, mappable_bytes
from ftengine.runtime import assemble
from ftengine.runtime.assemble import MemoryPlan, check_memory, choose_tier
from ftengine.runtime.engine import Engine
from tests.fakes.tiny_models import build_tiny_gguf, sizes_of
from tests.ftengine.parity.tiny_engines import greedy, load_engine, make_tiny, random_ids

Engines = Callable[..., Engine]
PROMPTS = [random_ids(count, seed=count) for count in (5, 17, 33)]
ROOT = Path(__file__).parents[3]
PROBE = """
import json, sys
from pathlib import Path
from tests.ftengine.parity.tiny_engines import greedy, load_engine, random_ids
engine = load_engine(Path(sys.argv[1]), tier=sys.argv[2])
prompts = [random_ids(count, seed=count) for count in (5, 17, 33)]
tokens = [item.token_ids for item in greedy(engine, prompts, 24)]
engine.settle()
lines = Path("/proc/self/status").read_text().splitlines()
kinds = ("RssAnon", "RssShmem")
own = sum(int(line.split()[1]) for line in lines if line.startswith(kinds))
print(json.dumps({"tokens": tokens, "own_bytes": own * 1024, "notes": engine.info.notes}))
"""


@pytest.mark.parametrize(
    "options",
    [{}, {"device": "emulated", "strategy": "split", "expert_slots": 23}],
    ids=["cpu", "emulated"],
)
def test_tokens_from_disk_are_the_same(options: dict[str, object], engines: Engines) -> None:
    want = [item.token_ids for item in greedy(engines(), PROMPTS, 24)]
    engine = engines(tier="disk", **options)
    assert [item.token_ids for item in greedy(engine, PROMPTS, 24)] == want
    assert any("slower tier" in note and "on disk" in note for note in engine.info.notes)


def test_rows_are_asked_for_before_they_are_read(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def noted(self: MappedRows, experts: object) -> None:
        asked.extend(experts)  # type: ignore[call-overload]

    monkeypatch.setattr(MappedRows, "will_read", noted)
    engine = engines(tier="disk")
    greedy(engine, PROMPTS, 4)
    stats = engine.info.experts
    assert stats is not None
    assert len(asked) == stats.on_cpu > 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_mapped_experts_are_not_this_process_s_own_memory(tmp_path: Path) -> None:
    sizes = sizes_of("mixtral", num_experts=32, expert_inter=384)
    ftw = make_tiny("mixtral", tmp_path, sizes=sizes)[1]
    with FtwModel.open(ftw) as model:
        bank_bytes = mappable_bytes(model)
    assert bank_bytes > 16 << 20
    found = {tier: probe(ftw, tier) for tier in ("memory", "disk")}
    assert found["disk"]["tokens"] == found["memory"]["tokens"]
    saved = int(str(found["memory"]["own_bytes"])) - int(str(found["disk"]["own_bytes"]))
    assert saved > 0.8 * bank_bytes


def probe(ftw: Path, tier: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(ftw), tier],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    value: dict[str, object] = json.loads(done.stdout)
    return value


def test_short_memory_chooses_the_disk_by_itself(
    engines: Engines, moe: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = [item.token_ids for item in greedy(engines(), PROMPTS, 12)]
    with FtwModel.open(moe("mixtral")) as model:
        need = load.kernel_bytes(model, "float32")
    free = assemble._RESERVE_BYTES + need
    monkeypatch.setattr(assemble, "available_bytes", lambda: free)
    engine = engines(context=64)
    assert any("slower tier" in note for note in engine.info.notes)
    assert [item.token_ids for item in greedy(engines(context=64), PROMPTS, 12)] == want
    with pytest.raises(CapacityError, match="free memory"):
        engines(context=64, tier="memory")


def test_tier_is_chosen_by_what_is_free() -> None:
    plan = MemoryPlan(4096, 256, 50_000_000_000, 2_000_000_000, 0, mappable_bytes=40_000_000_000)
    assert not choose_tier(plan, "auto", 60_000_000_000).on_disk
    assert not choose_tier(plan, "auto", None).on_disk
    assert not choose_tier(plan, "memory", 20_000_000_000).on_disk
    on_disk = choose_tier(plan, "auto", 20_000_000_000)
    assert on_disk.need_bytes == 12_000_000_000
    check_memory(on_disk, 20_000_000_000)
    with pytest.raises(CapacityError):
        check_memory(choose_tier(plan, "auto", 11_000_000_000), 11_000_000_000)
    with pytest.raises(LoadError, match="--tier disk is of no use here"):
        choose_tier(MemoryPlan(4096, 256, 1, 1, 1), "disk", None)


def test_format_that_must_be_repacked_stays_in_memory(tmp_path: Path) -> None:
    sizes = sizes_of("qwen3_moe", expert_inter=63)  # an odd number of bfloat16 has no panel form
    source = build_tiny_gguf(
        "qwen3moe", tmp_path / "m.gguf", types={"experts": "bf16"}, sizes=sizes
    )
    convert_folder(source, tmp_path / "ftw")
    with FtwModel.open(tmp_path / "ftw") as model:
        assert not any(can_map(bank) for bank in model.index.banks)
    with pytest.raises(LoadError, match="no use here"):
        load_engine(tmp_path / "ftw", tier="disk")


def test_mapped_rows_are_the_file_s_own_bytes(moe: Callable[[str], Path]) -> None:
    with FtwModel.open(moe("mixtral")) as model:
        bank = model.index.banks[2]
        path = model.path / model.index.shards[bank.shard].file
        rows = map_rows(path, bank)
        rows.will_read(range(bank.num_experts))
        raw = path.read_bytes()[bank.offset : bank.offset + bank.bytes]
        assert rows.tensor().numpy().tobytes() == raw
