"""Counters of one engine: one writer (the engine thread), read by the server as plain numbers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ftengine.experts.counters import ExpertCounters, LayerCounters
from ftengine.scheduler.reuse import Reuse


@dataclass
class Metrics:
    """Since the start. Units: tokens, seconds, counts."""

    requests: int = 0
    refused: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    preemptions: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    constraints: int = 0
    constraint_compile_s: float = 0.0
    constraint_masks: int = 0
    constraint_mask_s: float = 0.0
    constraint_wait_s: float = 0.0
    running: int = 0
    waiting: int = 0
    kv_pages: int = 0
    kv_pages_free: int = 0
    cache_pages: int = 0
    cache_checkpoints: int = 0
    cache_looked_up_tokens: int = 0
    cache_hit_tokens: int = 0
    cache_recomputed_tokens: int = 0
    cache_evicted_pages: int = 0
    cache_evicted_checkpoints: int = 0
    cache_hit_ratio: float = 0.0
    cache_parked_pages: int = 0
    cache_parked_file_bytes: int = 0
    cache_returned_tokens: int = 0

    def count_cache(self, reuse: Reuse) -> None:
        """Take over what the prefix cache has counted."""
        tree, counters = reuse.tree, reuse.counters
        self.cache_pages = tree.num_pages
        self.cache_checkpoints = tree.num_checkpoints
        self.cache_looked_up_tokens = counters.looked_up
        self.cache_hit_tokens = counters.hit
        self.cache_recomputed_tokens = counters.recomputed
        self.cache_evicted_pages = tree.evicted_pages
        self.cache_evicted_checkpoints = tree.evicted_checkpoints
        self.cache_hit_ratio = counters.hit / counters.looked_up if counters.looked_up else 0.0
        if reuse.parked is not None:
            self.cache_parked_pages = reuse.parked.num_pages
            self.cache_parked_file_bytes = reuse.parked.file_bytes
            self.cache_returned_tokens = reuse.parked.returned_tokens


_HELP = {
    "requests": ("counter", "Requests received."),
    "refused": ("counter", "Requests refused before they were queued."),
    "finished": ("counter", "Requests that ended by a stop token or their length."),
    "aborted": ("counter", "Requests ended by the client."),
    "failed": ("counter", "Requests ended by an error or their deadline."),
    "preemptions": ("counter", "Times a sequence gave its KV pages to an older one."),
    "steps": ("counter", "Model steps run."),
    "prompt_tokens": ("counter", "Prompt tokens computed."),
    "completion_tokens": ("counter", "Tokens generated."),
    "prefill_s": ("counter", "Seconds in steps that computed prompt tokens."),
    "decode_s": ("counter", "Seconds in steps that only decoded."),
    "constraints": ("counter", "Requests whose constraint was compiled."),
    "constraint_compile_s": ("counter", "Seconds from such a request to its first mask."),
    "constraint_masks": ("counter", "Token masks made."),
    "constraint_mask_s": ("counter", "Seconds in making them, beside the model's steps."),
    "constraint_wait_s": ("counter", "Seconds that steps waited for grammars."),
    "running": ("gauge", "Sequences with a place."),
    "waiting": ("gauge", "Sequences in the queue."),
    "kv_pages": ("gauge", "KV pages in all."),
    "kv_pages_free": ("gauge", "KV pages that no running sequence uses, cached ones included."),
    "cache_pages": ("gauge", "KV pages that the prefix cache holds."),
    "cache_checkpoints": ("gauge", "Checkpoints of recurrent states that the prefix cache holds."),
    "cache_looked_up_tokens": ("counter", "Prompt tokens looked up in the prefix cache."),
    "cache_hit_tokens": ("counter", "Prompt tokens reused from the prefix cache."),
    "cache_recomputed_tokens": ("counter", "Tokens computed although they had been before."),
    "cache_evicted_pages": ("counter", "Pages that the prefix cache gave up for others."),
    "cache_evicted_checkpoints": ("counter", "Checkpoints that gave way to newer ones."),
    "cache_hit_ratio": ("gauge", "Part of the prompt tokens looked up that were reused."),
    "cache_parked_pages": ("gauge", "KV pages parked in host memory."),
    "cache_parked_file_bytes": ("gauge", "Bytes of files with parked conversations."),
    "cache_returned_tokens": ("counter", "Tokens that came back from host memory or files."),
}


_EXPERT_HELP = {
    "hits": "Experts asked for that were in a slot, once per step.",
    "misses": "Experts asked for that were in no slot, once per step.",
    "fills": "Experts copied to slots because they were asked for.",
    "on_cpu": "Experts computed by the CPU from host memory, once per step.",
    "streamed": "Experts copied whole layers at a time in prefill.",
    "link_bytes": "Bytes copied from host memory to slots.",
    "passes": "Further rounds of steps that asked for more experts than there are slots.",
    "stall_s": "Seconds waited for copies.",
}


def expert_text(counters: ExpertCounters) -> str:
    """Counters of routed experts per MoE layer; empty for a dense model."""
    lines: list[str] = []
    for item in dataclasses.fields(LayerCounters) if counters.layers else ():
        name = "ft_engine_experts_" + item.name.removesuffix("_s")
        name += "_seconds_total" if item.name.endswith("_s") else "_total"
        lines += [f"# HELP {name} {_EXPERT_HELP[item.name]}", f"# TYPE {name} counter"]
        for number, layer in enumerate(counters.layers):
            lines.append(f'{name}{{layer="{number}"}} {getattr(layer, item.name)}')
    return "".join(line + "\n" for line in lines)


def prometheus_text(metrics: Metrics) -> str:
    """All counters in Prometheus' text format, version 0.0.4."""
    lines: list[str] = []
    for item in dataclasses.fields(metrics):
        kind, text = _HELP[item.name]
        name = "ft_engine_" + item.name.removesuffix("_s")
        name += "_seconds" if item.name.endswith("_s") else ""
        name += "_total" if kind == "counter" else ""
        lines += [
            f"# HELP {name} {text}",
            f"# TYPE {name} {kind}",
            f"{name} {getattr(metrics, item.name)}",
        ]
    return "\n".join(lines) + "\n"
