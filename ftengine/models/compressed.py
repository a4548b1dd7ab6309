"""CompressedSpec + weights -> attention over a window and compressed entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ftengine.cache.policy.pages import PAGE_TOKENS
from ftengine.errors import LoadError
from ftengine.layers.compressed import CompressedAttention, EntryHeads
from ftengine.layers.entries import Entries, EntryChoice, EntryStore, Pooling
from ftengine.layers.norm import RmsNorm
from ftengine.layers.rotary import RopeTables
from ftengine.models.materials import Materials
from ftengine.models.spec import CompressedSpec
from ftengine.models.weight_names import RowPick
from ftengine.models.widths import compressed_products


@dataclass(frozen=True)
class CompressedParts:
    """Weights below `prefix`, and the numbers of the layer's pages and state."""

    prefix: str
    materials: Materials
    rope: RopeTables
    next_kv: Callable[[], int]
    next_state: Callable[[], int]

    def norm(self, name: str) -> RmsNorm:
        """A norm with the model's own epsilon."""
        config = self.materials.config
        weight = self.materials.vector(self.prefix + name)
        return RmsNorm(weight, config.norm_eps, self.materials.kernels)


def build_compressed(parts: CompressedParts, spec: CompressedSpec) -> CompressedAttention:
    """Raises: LoadError for entries that do not fit pages."""
    made, prefix = parts.materials, parts.prefix
    ones = torch.ones(spec.head_dim)
    kv_index = parts.next_kv()
    entries = _entries(parts, spec)
    return CompressedAttention(
        kv_index=kv_index,
        heads=EntryHeads(spec.num_heads, spec.head_dim, spec.q_rank, spec.window),
        project=made.linear(*(prefix + name for name, _ in compressed_products(spec))),
        q_norm=parts.norm("q_a_norm"),
        q_up=made.linear(prefix + "q_b"),
        head_norm=RmsNorm(ones, made.config.norm_eps, made.kernels),
        kv_norm=parts.norm("kv_norm"),
        sinks=made.vector(prefix + "sinks").double(),
        scale=spec.head_dim**-0.5,
        rope=parts.rope,
        entries=entries,
        choice=_choice(parts, spec, entries),
        out_a=tuple(
            made.linear(RowPick(prefix + "o_a", 1, at, at + spec.group_rank))
            for at in range(0, spec.num_groups * spec.group_rank, spec.group_rank)
        ),
        out=made.linear(prefix + "o_b"),
    )


def _entries(parts: CompressedParts, spec: CompressedSpec) -> Entries | None:
    if spec.entries is None:
        return None
    ratio = spec.entries.ratio
    if PAGE_TOKENS % ratio and ratio % PAGE_TOKENS:
        raise LoadError(
            f"entries of {ratio} tokens do not fit pages of {PAGE_TOKENS}: one must divide the "
            "other"
        )
    stores = []
    first = 0
    for number, (name, (dim, width)) in enumerate(
        zip(("entry", "index"), spec.pooled, strict=False)
    ):
        place = parts.materials.vector(f"{parts.prefix}{name}_place").view(ratio, width)
        norm = parts.norm(f"{name}_norm")
        pooling = Pooling(ratio, dim, spec.entries.overlap, first, place, norm)
        stores.append(EntryStore(parts.next_kv(), pooling, (2 * number, 2 * number + 1)))
        first += 2 * width
    return Entries(parts.next_state(), tuple(stores), parts.rope)


def _choice(
    parts: CompressedParts, spec: CompressedSpec, entries: Entries | None
) -> EntryChoice | None:
    if entries is None or spec.entries is None or spec.entries.indexer is None:
        return None
    index = spec.entries.indexer
    return EntryChoice(
        num_heads=index.num_heads,
        top_k=index.top_k,
        first=sum(2 * width for _, width in spec.pooled),
        q_up=parts.materials.linear(parts.prefix + "index_q"),
        entries=entries,
    )
