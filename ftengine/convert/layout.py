"""Where every byte goes, decided from headers alone: regions of the FTW, pieces of the source.

A region is a dense tensor or an expert bank with its place in a shard. A piece is a byte range of a
source file and what it becomes; pieces run in file order and each is small enough for memory.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ftengine.convert.bank_plan import plan_bank
from ftengine.convert.pieces import Piece, all_pieces, region_name
from ftengine.convert.protocol import Derive
from ftengine.convert.source import FACTOR, SCALES, Checkpoint, SourceTensor
from ftengine.errors import LoadError
from ftengine.loader.ftw import ALIGN_BYTES, SHARD_BYTES, FtwBank, FtwTensor
from ftengine.loader.stored import SCALE_FORMATS, code_bytes, scale_shapes
from ftengine.models.families import family_named
from ftengine.models.spec import ModelConfig
from ftengine.models.weight_names import (
    COPIED,
    SKIPPED,
    Matcher,
    Place,
    Rule,
    wanted_banks,
    wanted_tensors,
)

_NAMED_LIMIT = 5


@dataclass(frozen=True)
class Layout:
    """The whole plan. shards: bytes of each; generated: regions that no piece goes to."""

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
    places = [(p, t) for p, t in places if p.layer < len(model.layers) and not _idle(model, p)]
    wanted = wanted_tensors(model)
    places = [(place.settled(wanted), tensor) for place, tensor in places]
    dense = _check_dense(model, places, derive)
    beside = {(place.name, tensor.role): tensor for place, tensor in places if not place.part}
    banks = _plan_banks(model, places)
    regions = list(_ordered_regions(model, dense, beside, banks, derive))
    placed, shards = assign(regions)
    tensors = tuple(item for item in placed if isinstance(item, FtwTensor))
    permuted = source.kind == "gguf" and source.family.gguf_permuted
    pieces = all_pieces(model, places, permuted)
    filled = {piece.name for piece in pieces}
    generated = tuple(item.name for item in tensors if item.name not in filled)
    return Layout(
        model,
        tensors,
        tuple(item for item in placed if isinstance(item, FtwBank)),
        shards,
        pieces,
        generated,
        tied,
    )


def _idle(model: ModelConfig, place: Place) -> bool:
    """Whether this belongs to an expert that only returns its input."""
    if not place.part or place.layer < 0:
        return False
    moe = model.layers[place.layer].experts
    return moe is not None and moe.router.identities > 0 and moe.router.num_experts <= place.expert


def _find_places(source: Checkpoint, derive: Derive | None) -> list[tuple[Place, SourceTensor]]:
    family = source.family
    rules = family.gguf_weights if source.kind == "gguf" else family.weights
    if derive is not None:
        rules = (*rules, *_dense_rules(source.kind))
    found, unknown = [], []
    seen: dict[tuple[str, int, str, str], str] = {}
    matcher = Matcher(rules)
    for tensor in source.tensors:
        place = matcher.match(tensor.rule_name)
        if place is None:
            if not SKIPPED.search(tensor.name):
                unknown.append(tensor.name)
            continue
        if derive is not None:
            place = _derived_place(place)
        key = (place.name, place.expert, place.part, tensor.role)
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


def _plan_banks(model: ModelConfig, places: list[tuple[Place, SourceTensor]]) -> dict[str, FtwBank]:
    found: dict[str, list[tuple[Place, SourceTensor]]] = defaultdict(list)
    for place, tensor in places:
        found[place.name].append((place, tensor))
    return {
        name: plan_bank(name, wanted, found[name]) for name, wanted in wanted_banks(model).items()
    }


def _check_dense(
    model: ModelConfig, places: list[tuple[Place, SourceTensor]], derive: Derive | None
) -> dict[str, SourceTensor]:
    wanted = wanted_tensors(model)
    dense = {place.name: tensor for place, tensor in places if not place.part and not tensor.role}
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
        if not _same_shape(tensor.shape, wanted[name].shape):
            raise LoadError(
                f"{tensor.name} has shape {list(tensor.shape)}, the config says "
                f"{list(wanted[name].shape)}"
            )
        if name == "embed" and tensor.format in SCALE_FORMATS:
            raise LoadError(
                f"{tensor.name} is {tensor.format}; a quantised embedding is not built yet",
                code="unsupported_format",
            )
    return dense


def _same_shape(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether the same numbers lie in the same order: vectors as [1, n], heads as [h, rows, n]."""
    if found == wanted or math.prod(found) != math.prod(wanted):
        return found == wanted
    return len(wanted) == 1 or found[-1] == wanted[-1]


def _ordered_regions(
    model: ModelConfig,
    dense: dict[str, SourceTensor],
    beside: dict[tuple[str, str], SourceTensor],
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
            yield from _with_scales(name, replace(tensor, shape=wanted.shape), beside)
        if name.endswith(".router"):
            yield banks[name.removesuffix("router") + "experts"]


def _with_scales(
    name: str, tensor: SourceTensor, beside: dict[tuple[str, str], SourceTensor]
) -> Iterator[FtwTensor]:
    """A dense tensor and, where it is quantised, its scales and factor after it."""
    if tensor.blocks:
        yield from _of_blocks(name, tensor, beside.get((name, FACTOR)))
        return
    roles = {role: beside[name, role] for role in (SCALES, FACTOR) if (name, role) in beside}
    names = {role: region_name(name, role) for role in roles}
    size = tensor.end - tensor.start
    yield FtwTensor(name, 0, 0, size, tensor.shape, tensor.format, **names)
    for role, item in roles.items():
        yield FtwTensor(names[role], 0, 0, item.end - item.start, item.shape, item.format)


def _of_blocks(name: str, tensor: SourceTensor, given: SourceTensor | None) -> Iterator[FtwTensor]:
    """Codes, scales and factor of a matrix whose blocks hold the first two."""
    if given is not None and given.shape != (1,):
        raise LoadError(f"{given.name} holds {list(given.shape)} factors; one is built")
    rows, cols = tensor.shape
    scales, factor = region_name(name, SCALES), region_name(name, FACTOR)
    shape = scale_shapes(tensor.format, rows, cols)[0]
    size = rows * code_bytes(tensor.format, cols)
    yield FtwTensor(name, 0, 0, size, tensor.shape, tensor.format, scales, factor)
    yield FtwTensor(scales, 0, 0, math.prod(shape), shape, "e4m3")
    yield FtwTensor(factor, 0, 0, 4, (1,), "f32")


def assign(
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


def _some(names: list[str]) -> str:
    shown = ", ".join(name[:120] for name in names[:_NAMED_LIMIT])
    return shown + (", ..." if len(names) > _NAMED_LIMIT else "")
