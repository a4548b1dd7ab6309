"""Specs of mixers that keep keys in pages: grouped-query, latent and compressed attention.

The rest of the vocabulary stands in spec.py, which takes these in.
"""

from __future__ import annotations

from dataclasses import dataclass

Q8_0_GROUP, Q8_0_GROUP_BYTES = 32, 34
"""Numbers that share a scale, and their bytes with it; quant/q8_0.py is what stores them."""


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of one attention block.

    Units: dims = rotated dimensions of a head (<= head_dim). style "half" pairs (j, j + dims/2),
    "interleaved" pairs (2j, 2j+1). scaling "none", "linear", "llama3" or "yarn"; its numbers stand
    in `factors` by the names of the checkpoint's config.
    """

    dims: int
    theta: float
    style: str = "half"
    scaling: str = "none"
    factors: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class CachedShape:
    """What a mixer keeps in pages. Units: numbers per head of keys and values, 0 = no values.

    tokens_per_row: how many tokens share one row of a page; a page of 16 tokens has at least one.
    quantizable: only the paged kernels read and write it, so that it may be q8_0.
    """

    num_heads: int
    key_dim: int
    value_dim: int = 0
    tokens_per_row: int = 1
    quantizable: bool = False

    @property
    def elements_per_token(self) -> float:
        """Numbers that one token adds, on average."""
        shared = min(self.tokens_per_row, 16)
        return self.num_heads * (self.key_dim + self.value_dim) / shared


KvShapes = tuple[CachedShape, ...]
"""Everything one mixer keeps in pages."""


@dataclass(frozen=True)
class HeadNorm:
    """How q and k are normalised. whole: over all heads at once; late: after the rotation.

    free: without weights.
    """

    whole: bool = False
    late: bool = False
    free: bool = False


HEAD_NORM = HeadNorm()


@dataclass(frozen=True)
class ValueSpec:
    """How values differ from keys. dim: numbers of a value head where they are fewer, 0 = as many.

    scale multiplies them. norm: every head is normalised, without weights. of_keys: no projection
    of their own, they are the keys before their norm and rotation.
    """

    dim: int = 0
    scale: float = 1.0
    norm: bool = False
    of_keys: bool = False


PLAIN_VALUES = ValueSpec()


@dataclass(frozen=True)
class BlocksSpec:
    """Each key head sees the top_blocks blocks of `size` tokens that a small head of its own likes.

    local: the token's own block and those before it, so many in all, are always seen.
    """

    num_heads: int
    head_dim: int
    size: int
    top_blocks: int
    local: int

    @property
    def rows(self) -> int:
        """Of the projections: queries and one key."""
        return (self.num_heads + 1) * self.head_dim


@dataclass(frozen=True)
class AttentionSpec:
    """Grouped-query softmax attention. window 0 = full; the window counts the token itself.

    rope None: no position encoding. qk_norm: a norm on q and k, before the rotation or, if `norm`
    says so, elsewhere. gate: sigmoid of it multiplies the output; its rows follow each head's query
    in `attn.q`, or stand in `attn.gate` if gate_apart. fused: q, k and v rows in one `attn.qkv`.
    chunk: tokens see their own chunk of that many positions only, 0 = all. clip: bound of q, k and
    v after the norm, 0 = none. temper (beta, old): queries at position p are multiplied by
    1 + beta ln(1 + floor((p + 1) / old)).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec | None
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    window: int = 0
    sinks: bool = False
    gate: bool = False
    gate_apart: bool = False
    fused: bool = False
    norm: HeadNorm = HEAD_NORM
    chunk: int = 0
    clip: float = 0.0
    temper: tuple[float, float] | None = None
    values: ValueSpec = PLAIN_VALUES
    blocks: BlocksSpec | None = None

    @property
    def reference(self) -> str:
        """What is computed without a fast kernel."""
        return "block-sparse attention" if self.blocks is not None else ""

    @property
    def value_dim(self) -> int:
        """Numbers of a value head."""
        return self.values.dim or self.head_dim

    @property
    def kv_shapes(self) -> KvShapes:
        """Keys and values of one layer; shorter values are kept as long as keys."""
        dim, heads = self.head_dim, self.num_kv_heads
        whole_groups = dim % Q8_0_GROUP == 0
        if self.blocks is None:
            return (CachedShape(heads, dim, dim, quantizable=whole_groups),)
        return CachedShape(heads, dim, dim), CachedShape(1, self.blocks.head_dim)

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """No state beside the paged keys and values."""
        return ()


@dataclass(frozen=True)
class IndexerSpec:
    """Chooses the tokens that sparse attention sees: the top_k best by small heads of its own.

    style: of the rope on the first dimensions. shared: this layer has no indexer and takes the
    choice of the last layer that has one.
    """

    num_heads: int
    head_dim: int
    top_k: int
    style: str = "half"
    shared: bool = False


@dataclass(frozen=True)
class LatentSpec:
    """Multi-head latent attention: keys and values of all heads are made from one small vector.

    Units: numbers per head for nope_dim (not rotated), rope_dim and value_dim; kv_rank and q_rank
    are the widths of the latents, q_rank 0 = queries straight from the input. q_gain and kv_gain
    multiply the latents after their norms. temper (beta, old): queries at position p are
    multiplied by 1 + beta ln(1 + floor(p / old)). gate: sigmoid of one number per head, from
    `mla.gate`, multiplies the output. apart: instead of `mla.kv_b` there are `mla.k_b`, transposed
    head by head, and `mla.v_b`.
    """

    num_heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    kv_rank: int
    q_rank: int
    scale: float
    rope: RopeSpec | None
    q_gain: float = 1.0
    kv_gain: float = 1.0
    temper: tuple[float, float] | None = None
    gate: bool = False
    indexer: IndexerSpec | None = None
    apart: bool = False

    @property
    def reference(self) -> str:
        """What is computed without a fast kernel."""
        return "latent attention" + (" with an indexer" if self.indexer is not None else "")

    @property
    def head_dim(self) -> int:
        """Numbers of a query."""
        return self.nope_dim + self.rope_dim

    @property
    def kv_width(self) -> int:
        """Numbers kept per token: the latent and the rotated key that all heads share."""
        return self.kv_rank + self.rope_dim

    @property
    def kv_shapes(self) -> KvShapes:
        """The latent with its key; keys of the indexer where the layer has one."""
        latent = CachedShape(1, self.kv_width)
        if self.indexer is None or self.indexer.shared:
            return (latent,)
        return latent, CachedShape(1, self.indexer.head_dim)

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """No state beside the pages."""
        return ()


@dataclass(frozen=True)
class EntrySpec:
    """Entries that stand for `ratio` tokens each. overlap: and for as many before them.

    indexer: chooses among them; its top_k counts entries.
    """

    ratio: int
    overlap: bool = False
    indexer: IndexerSpec | None = None


@dataclass(frozen=True)
class CompressedSpec:
    """One key head that all query heads share, keys being values, over a window and entries.

    The last rope.dims of a head rotate. The output goes through num_groups matrices of group_rank
    rows, one for each group of heads, and then through one. entries None: the window alone.
    """

    num_heads: int
    head_dim: int
    q_rank: int
    window: int
    rope: RopeSpec
    num_groups: int
    group_rank: int
    entries: EntrySpec | None = None

    reference = "attention over compressed entries"

    @property
    def kv_shapes(self) -> KvShapes:
        """Keys of tokens, entries, and the entries' keys for the choice."""
        found = [CachedShape(1, self.head_dim)]
        if self.entries is not None:
            ratio, index = self.entries.ratio, self.entries.indexer
            found.append(CachedShape(1, self.head_dim, tokens_per_row=ratio))
            if index is not None:
                found.append(CachedShape(1, index.head_dim, tokens_per_row=ratio))
        return tuple(found)

    @property
    def pooled(self) -> tuple[tuple[int, int], ...]:
        """(numbers of an entry, numbers of a token it is made from) of every kind of entries."""
        if self.entries is None:
            return ()
        wide = 2 if self.entries.overlap else 1
        dims = [self.head_dim]
        if self.entries.indexer is not None:
            dims.append(self.entries.indexer.head_dim)
        return tuple((dim, wide * dim) for dim in dims)

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Numbers and gates of the tokens whose entries are not complete."""
        if self.entries is None:
            return ()
        kept = (2 if self.entries.overlap else 1) * self.entries.ratio - 1
        return tuple((kept, width) for _, width in self.pooled for _ in ("numbers", "gates"))
