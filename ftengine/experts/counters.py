"""What happened to routed experts, per layer: written by the engine thread, read by the server."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass
class LayerCounters:
    """Since the start. Experts are counted once per step, however many tokens wanted them.

    hits + misses = distinct experts; fills + on_cpu >= misses where a step ran in passes.
    streamed: experts copied whole layers at a time in prefill. Units: bytes over the link;
    seconds the engine waited for fills.
    """

    hits: int = 0
    misses: int = 0
    fills: int = 0
    on_cpu: int = 0
    streamed: int = 0
    link_bytes: int = 0
    passes: int = 0
    stall_s: float = 0.0

    def add(self, other: LayerCounters) -> None:
        """Add another layer's counts to these."""
        for item in dataclasses.fields(self):
            value = getattr(self, item.name) + getattr(other, item.name)
            setattr(self, item.name, value)


class ExpertCounters:
    """One LayerCounters per MoE layer."""

    def __init__(self) -> None:
        self.layers: list[LayerCounters] = []

    def add_layer(self) -> LayerCounters:
        """Counters of the next layer."""
        self.layers.append(LayerCounters())
        return self.layers[-1]

    def total(self) -> LayerCounters:
        """The sum over all layers."""
        found = LayerCounters()
        for layer in self.layers:
            found.add(layer)
        return found
