"""ft memory and ft ps --experts: what is sent, what is printed."""

from __future__ import annotations

from typing import Any

import pytest

from ftman.cli.commands.memory import parse_size
from ftman.errors import UsageError
from tests.ftman.cli.conftest import Cli
from tests.ftman.cli.gateway import Gateway, Reply

STATE = {
    "expert_slots": 3790,
    "slot_bytes": 1_572_864,
    "kv_bytes": 268_435_456,
    "kv_pages": 4096,
    "device_bytes": 8_000_000_000,
    "device_free_bytes": 1_500_000_000,
    "preempted": 2,
}
STATS = {
    "strategy": "split",
    "slots": 3790,
    "total": 10240,
    "hits": 84,
    "misses": 16,
    "fills": 41,
    "on_cpu": 59,
    "link_bytes": 1_200_000_000,
}
MODEL: dict[str, Any] = {
    "name": "qwen3.6-35b:nvfp4",
    "stats": STATS,
    "kv_bytes": 1,
    "link_bytes_per_s": 9.8e9,
    "tokens_per_s": 42.3,
    "last_step_s": 0.021,
}


def test_memory_asks_for_slots_or_for_context(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/ft/memory", STATE)
    out = ft("memory", "m", "--experts", "3790").out
    assert out.strip() == (
        "experts 3,790 slots (6.0 GB)   context 268 MB   free 1.5 GB of 8 GB   "
        "2 requests made room and are computed again"
    )
    ft("memory", "m", "--kv", "256MiB")
    assert gateway.bodies("/api/ft/memory") == [
        {"model": "m", "expert_slots": 3790},
        {"model": "m", "kv_bytes": 256 << 20},
    ]


def test_memory_wants_exactly_one_wish(ft: Cli, gateway: Gateway) -> None:
    assert ft("memory", "m").code == 2
    assert ft("memory", "m", "--experts", "1", "--kv", "1").code == 2
    assert ft("memory", "m", "--kv", "much").code == 2
    assert not gateway.bodies("/api/ft/memory")


def test_refused_division_is_an_error_of_its_own_kind(ft: Cli, gateway: Gateway) -> None:
    gateway.on("POST", "/api/ft/memory", Reply({"error": "64 fit", "code": "capacity"}, status=507))
    found = ft("memory", "m", "--experts", "65")
    assert found.code != 0
    assert "64 fit" in found.err


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1234", 1234),
        ("12B", 12),
        ("1.5G", 1_500_000_000),
        ("2gib", 2 << 30),
        ("3 K", 3000),
    ],
)
def test_sizes_are_read_with_their_units(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1", "1.2.3", "5 apples"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


def test_ps_experts_tells_what_happens_to_them(ft: Cli, gateway: Gateway) -> None:
    on_cpu = MODEL | {"name": "b", "stats": STATS | {"slots": 0}, "last_step_s": None}
    dense = MODEL | {"name": "c", "stats": None}
    emulated = MODEL | {"name": "d", "link_bytes_per_s": None}
    gateway.on("GET", "/api/ft/experts", {"models": [MODEL, on_cpu, dense, emulated]})
    lines = ft("ps", "--experts").out.splitlines()
    assert lines[0] == (
        "qwen3.6-35b:nvfp4   slots 3,790 of 10,240 (37 %)   hit 84 %   "
        "misses: 41 % filled, 59 % on CPU   link 9.8 GB/s   42 tok/s, last token 0.02 s ago"
    )
    assert lines[1] == "b   all 10,240 experts on CPU   42 tok/s"
    assert lines[3] == (
        "d   slots 3,790 of 10,240 (37 %)   hit 84 %   misses: 41 % filled, 59 % on CPU   "
        "link 1.2 GB in all (emulated, no rate)   42 tok/s, last token 0.02 s ago"
    )
    assert lines[2] == "c   dense model, no routed experts"


def test_ps_cache_tells_what_was_reused(ft: Cli, gateway: Gateway) -> None:
    stats = {
        "enabled": True,
        "pages": 100,
        "checkpoints": 16,
        "checkpoints_used": 3,
        "checkpoint_bytes": 66_000_000,
        "looked_up_tokens": 20_000,
        "hit_tokens": 15_000,
        "recomputed_tokens": 40,
    }
    off = MODEL | {"name": "b", "cache": stats | {"enabled": False}}
    fresh = {"checkpoints": 0, "looked_up_tokens": 0, "pages": 0}
    new = MODEL | {"name": "c", "cache": stats | fresh}
    parked = {
        "parked_bytes": 300_000_000,
        "parked_limit_bytes": 1_000_000_000,
        "parked_file_bytes": 2_000_000_000,
        "parked_file_limit_bytes": 8_000_000_000,
        "returned_tokens": 9_000,
    }
    memory = parked | {"parked_file_limit_bytes": 0, "returned_tokens": 0}
    models = [MODEL | {"name": "a", "cache": stats}, off, new, MODEL | {"name": "d"}]
    models += [MODEL | {"name": "e", "cache": stats | fresh | parked}]
    models += [MODEL | {"name": "f", "cache": stats | fresh | memory}]
    small = {"kv_format": "q8_0", "kv_bytes": 285_000_000}
    models += [MODEL | {"name": "g", "cache": stats | fresh} | small]
    gateway.on("GET", "/api/ft/experts", {"models": models})
    assert ft("ps", "--cache").out.splitlines() == [
        "a   1,600 tokens kept   3 of 16 states (1.1 GB)   "
        "reused 75 % of 20,000 prompt tokens   recomputed 40",
        "b   prefix cache off",
        "c   0 tokens kept",
        "d   prefix cache off",
        "e   0 tokens kept   parked 300 MB of 1 GB in memory, 2 GB of 8 GB on disk, "
        "9,000 tokens came back",
        "f   0 tokens kept   parked 300 MB of 1 GB in memory",
        "g   KV q8_0 285 MB   0 tokens kept",
    ]
    assert ft("ps", "--cache", "--experts").code == 2


def test_show_engine_tells_how_it_computes_and_keeps(ft: Cli, gateway: Gateway) -> None:
    facts = {
        "device": "cpu",
        "compute": "bfloat16",
        "kv_format": "q8_0,bf16",
        "kv_bytes": 285_000_000,
        "kernels": {"set": "native", "step": "native but for 2 mixers"},
        "notes": ["2 of 4 parts of the KV cache are q8_0; the others stay bf16"],
    }
    models = [MODEL | facts, MODEL | {"name": "other:latest"}]
    gateway.on("GET", "/api/ft/experts", {"models": models})
    out = ft("show", MODEL["name"], "--engine").out
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "ENGINE VALUE",
        "device cpu",
        "compute bfloat16",
        "weights 0 B",
        "KV cache q8_0,bf16 285 MB",
        "kernels: set native",
        "kernels: step native but for 2 mixers",
        "note 2 of 4 parts of the KV cache are q8_0; the others stay bf16",
    ]
    assert ft("show", MODEL["name"].partition(":")[0], "--engine").out == out
    found = ft("show", "nobody", "--engine")
    assert found.code != 0
    assert "nobody is not loaded" in found.err
