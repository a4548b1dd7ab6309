"""Where every byte goes, decided from headers alone: regions of the FTW, pieces of the source.

A region is a dense tensor or an expert bank with its place in a shard. A piece is a byte range of a
source file and what it becomes; pieces run in file order and each is small enough for memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ftengine.convert.bank_plan import plan_bank
from ftengine.convert.protocol import Derive
from ftengine.convert.source import Checkpoint, SourceTensor
from ftengine.errors import LoadError
from ftengine.loader.ftw import ALIGN_BYTES, SHARD_BYTES, FtwBank, FtwTensor
from ftengine.models.families import family_named
from ftengine.models.spec import ModelConfig
from ftengine.models.weight_names import (
    COPIED,
    SKIPPED,
    Place,
    Rule,
    match,
    wanted_banks,
    wanted_tensors,
)
from ftengine.quant import format_named

PIECE_BYTES = 32 << 20
_NAMED_LIMIT = 5


@dataclass(frozen=True)
class Piece:
    """One step of the conversion. Units: bytes; `at` is the place inside a dense region.

    part is empty for dense rows; expert is COPIED where every row gets the same bytes. heads
    above 0: the rows are that many heads in interleaved rope order and are to be un-permuted.
    """

    file: int
    start: int
    end: int
    name: str
    format: str
    row_bytes: int
    at: int = 0
    heads: int = 0
    part: str = ""
    expert: int = COPIED


@dataclass(frozen=True)
class Layout:
    """The whole plan. shards: bytes of each; generated: router regions made by the recipe."""

    model: ModelConfig
    tensors: tuple[FtwTensor, ...]
    banks: tuple[FtwBank, ...]
    shards: tuple[int, ...]
    pieces: tuple[Piece, ...]
    generated: tuple[str, ...]
    tied: bool

    @property
    def total_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(self.shards)


def plan_layout(source: Checkpoint, derive: Derive | None) -> Layout:
    """Place every tensor of a checkpoint.

    Raises: LoadError naming tensors that are unknown, missing, doubled or of a wrong shape.
    """
    places = _find_places(source, derive)
    config = dict(source.config)
    has_head = any(place.name == "head" for place, _ in places)
    tied = bool(config.get("tie_word_embeddings")) or not has_head
    config["tie_word_embeddings"] = tied
    model = source.family.read_config(config)
    if tied:
        places = [(place, tensor) for place, tensor in places if place.name != "head"]
    places = [(p, t) for p, t in places if p.layer < len(model.layers)]
    dense = _check_dense(model, places, derive)
    banks = {
        name: plan_bank(name, wanted, [item for item in places if item[0].name == name])
        for name, wanted in wanted_banks(model).items()
    }
    regions = list(_ordered_regions(model, dense, banks, derive))
    placed, shards = _assign(regions)
    tensors = tuple(item for item in placed if isinstance(item, FtwTensor))
    permuted = source.kind == "gguf" and source.family.gguf_permuted
    pieces = [
        piece for place, tensor in places for piece in _pieces(model, place, tensor, permuted)
    ]
    pieces.sort(key=lambda piece: (piece.file, piece.start, piece.end))
    generated = tuple(t.name for t in tensors if t.name not in dense)
    return Layout(
        model,
        tensors,
        tuple(item for item in placed if isinstance(item, FtwBank)),
        shards,
        tuple(pieces),
        generated,
        tied,
    )


def _find_places(source: Checkpoint, derive: Derive | None) -> list[tuple[Place, SourceTensor]]:
    family = source.family
    rules = family.gguf_weights if source.kind == "gguf" else family.weights
    if derive is not None:
        rules = (*rules, *_dense_rules(source.kind))
    found, unknown = [], []
    seen: dict[tuple[str, int, str], str] = {}
    for tensor in source.tensors:
        place = match(rules, tensor.name)
        if place is None:
            if not SKIPPED.search(tensor.name):
                unknown.append(tensor.name)
            continue
        if derive is not None:
            place = _derived_place(place)
        key = (place.name, place.expert, place.part)
        if key in seen:
            raise LoadError(f"{seen[key]} and {tensor.name} are both {place.name} {place.part}")
        seen[key] = tensor.name
        found.append((place, tensor))
    if unknown:
        raise LoadError(
            f"{len(unknown)} tensors are unknown to family {family.name}: {_some(unknown)}",
            code="unknown_tensor",
        )
    return found


def _dense_rules(kind: str) -> tuple[Rule, ...]:
    dense = family_named("llama")
    return dense.gguf_weights if kind == "gguf" else dense.weights


def _derived_place(place: Place) -> Place:
    """The dense MLP becomes the one expert that all rows hold."""
    stem, _, last = place.name.rpartition(".mlp.")
    if not stem or last not in ("gate", "up", "down"):
        return place
    return Place(f"{stem}.experts", place.layer, COPIED, last)


def _check_dense(
    model: ModelConfig, places: list[tuple[Place, SourceTensor]], derive: Derive | None
) -> dict[str, SourceTensor]:
    wanted = wanted_tensors(model)
    dense = {place.name: tensor for place, tensor in places if not place.part}
    extra = [tensor.name for name, tensor in dense.items() if name not in wanted]
    if extra:
        raise LoadError(
            f"the config has no place for {len(extra)} tensors: {_some(extra)}",
            code="unknown_tensor",
        )
    made = {name for name in wanted if derive is not None and name.endswith(".router")}
    missing = [name for name in wanted if name not in dense and name not in made]
    if missing:
        raise LoadError(f"{len(missing)} tensors are missing: {_some(missing)}")
    for name, tensor in dense.items():
        if tensor.shape != wanted[name].shape:
            raise LoadError(
                f"{tensor.name} has shape {list(tensor.shape)}, the config says "
                f"{list(wanted[name].shape)}"
            )
    return dense


def _ordered_regions(
    model: ModelConfig,
    dense: dict[str, SourceTensor],
    banks: dict[str, FtwBank],
    derive: Derive | None,
) -> Iterator[FtwTensor | FtwBank]:
    """Regions in the order of the forward pass, without their places."""
    for name, wanted in wanted_tensors(model).items():
        tensor = dense.get(name)
        if tensor is None:
            assert derive is not None
            yield FtwTensor(name, 0, 0, 4 * math.prod(wanted.shape), wanted.shape, "f32")
        else:
            yield FtwTensor(name, 0, 0, tensor.end - tensor.start, tensor.shape, tensor.format)
        if name.endswith(".router"):
            yield banks[name.removesuffix("router") + "experts"]


def _assign(
    regions: Iterable[FtwTensor | FtwBank],
) -> tuple[list[FtwTensor | FtwBank], tuple[int, ...]]:
    """Give every region its shard and offset; a shard ends before it would pass SHARD_BYTES."""
    placed: list[FtwTensor | FtwBank] = []
    sizes = [0]
    for region in regions:
        padded = -(-region.bytes // ALIGN_BYTES) * ALIGN_BYTES
        if sizes[-1] and sizes[-1] + padded > SHARD_BYTES:
            sizes.append(0)
        placed.append(replace(region, shard=len(sizes) - 1, offset=sizes[-1]))
        sizes[-1] += padded
    return placed, tuple(sizes)


def _pieces(
    model: ModelConfig, place: Place, tensor: SourceTensor, permuted: bool
) -> Iterator[Piece]:
    fmt = format_named(tensor.format)
    row_bytes = fmt.row_bytes(tensor.shape[-1]) if len(tensor.shape) > 1 else fmt.block_bytes
    if not place.part:
        yield from _dense_pieces(model, place, tensor, row_bytes, permuted)
        return
    if not place.is_stacked:
        yield Piece(
            tensor.file,
            tensor.start,
            tensor.end,
            place.name,
            tensor.format,
            row_bytes,
            part=place.part,
            expert=place.expert,
        )
        return
    size = (tensor.end - tensor.start) // tensor.shape[0]
    for expert in range(tensor.shape[0]):
        start = tensor.start + expert * size
        yield Piece(
            tensor.file,
            start,
            start + size,
            place.name,
            tensor.format,
            row_bytes,
            part=place.part,
            expert=expert,
        )


def _dense_pieces(
    model: ModelConfig, place: Place, tensor: SourceTensor, row_bytes: int, permuted: bool
) -> Iterator[Piece]:
    """Chunks of whole rows; of whole heads where rows have to be un-permuted."""
    unit, inner = 1, place.name.split(".", 2)[-1].removesuffix(".bias")
    permuted = permuted and inner in ("attn.q", "attn.k")
    if permuted:
        unit = model.layers[place.layer].attention.head_dim
    step = max(1, PIECE_BYTES // (row_bytes * unit)) * unit * row_bytes
    for start in range(tensor.start, tensor.end, step):
        end = min(start + step, tensor.end)
        yield Piece(
            tensor.file,
            start,
            end,
            place.name,
            tensor.format,
            row_bytes,
            at=start - tensor.start,
            heads=(end - start) // (row_bytes * unit) if permuted else 0,
        )


def _some(names: list[str]) -> str:
    shown = ", ".join(name[:120] for name in names[:_NAMED_LIMIT])
    return shown + (", ..." if len(names) > _NAMED_LIMIT else "")
