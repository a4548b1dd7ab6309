"""Pieces: byte ranges of the source and what becomes of them, in file order.

Which regions there are is layout.py's business.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ftengine.convert.bank_plan import bank_part
from ftengine.convert.source import SCALES, SourceTensor
from ftengine.loader.stored import SCALE_FORMATS, code_bytes, scale_shapes
from ftengine.models.spec import ModelConfig
from ftengine.models.weight_names import COPIED, Place
from ftengine.quant import format_named, nvfp4

PIECE_BYTES = 32 << 20


@dataclass(frozen=True)
class Piece:
    """One step of the conversion. Units: bytes; `at` is the place inside a dense region.

    part is empty for dense rows; expert is COPIED where every row gets the same bytes. heads
    above 0: the rows are that many heads in interleaved rope order and are to be un-permuted.
    role, blocks: as SourceTensor has them; dense blocks are two pieces of the same bytes, codes and
    scales. stage: where these bytes wait for their partners, if they must. order: as Rule has it.
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
    role: str = ""
    stage: int = 0
    order: str = ""
    blocks: bool = False


def region_name(name: str, role: str) -> str:
    """The name of a dense region: that of the weight, or of what belongs to it."""
    return f"{name}.{role}" if role else name


def all_pieces(
    model: ModelConfig, places: list[tuple[Place, SourceTensor]], permuted: bool
) -> tuple[Piece, ...]:
    """Pieces of every tensor in file order, each with its place in its bank's staging file."""
    pieces: list[Piece] = []
    ends: dict[str, int] = defaultdict(int)
    for place, tensor in places:
        if place.part:
            pieces.extend(_expert_pieces(place, tensor, ends[place.name]))
            ends[place.name] += tensor.end - tensor.start
        else:
            pieces.extend(_dense_pieces(model, place, tensor, permuted))
    pieces.sort(key=lambda piece: (piece.file, piece.start, piece.end))
    return tuple(pieces)


def _expert_pieces(place: Place, tensor: SourceTensor, stage: int) -> Iterator[Piece]:
    """One piece, or one for every expert of a stacked tensor."""
    row_bytes = _stored_row_bytes(tensor)
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
            role=tensor.role,
            stage=stage,
            order=place.order,
            blocks=tensor.blocks,
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
            role=tensor.role,
            stage=stage + expert * size,
            order=place.order,
            blocks=tensor.blocks,
        )


def _stored_row_bytes(tensor: SourceTensor) -> int:
    """Bytes of a row in the source; 1 for scales, which nobody cuts by rows."""
    if tensor.role:
        return 1
    if tensor.blocks:
        return nvfp4.ggml_row_bytes(tensor.shape[-1])
    if tensor.format in SCALE_FORMATS:
        return code_bytes(tensor.format, tensor.shape[-1])
    fmt = format_named(tensor.format)
    return fmt.row_bytes(tensor.shape[-1]) if len(tensor.shape) > 1 else fmt.block_bytes


def _dense_pieces(
    model: ModelConfig, place: Place, tensor: SourceTensor, permuted: bool
) -> Iterator[Piece]:
    """Chunks of whole rows; of whole heads where rows have to be un-permuted."""
    row_bytes = _stored_row_bytes(tensor)
    unit, inner = 1, place.name.split(".", 2)[-1].removesuffix(".bias")
    permuted = permuted and inner in ("attn.q", "attn.k")
    if permuted:
        unit = model.layers[place.layer].attention.head_dim
    step = max(1, PIECE_BYTES // (row_bytes * unit)) * unit * row_bytes
    for start in range(tensor.start, tensor.end, step):
        end = min(start + step, tensor.end)
        piece = Piece(
            tensor.file,
            start,
            end,
            region_name(place.name, tensor.role),
            tensor.format,
            row_bytes,
            at=start - tensor.start,
            heads=(end - start) // (row_bytes * unit) if permuted else 0,
            role=tensor.role,
            blocks=tensor.blocks,
        )
        if tensor.blocks:
            yield from _codes_and_scales(piece, tensor.shape[-1])
        else:
            yield piece


def _codes_and_scales(piece: Piece, cols: int) -> Iterator[Piece]:
    """The two regions that get something of dense blocks."""
    rows = piece.at // piece.row_bytes
    yield replace(piece, at=rows * code_bytes(piece.format, cols))
    at = math.prod(scale_shapes(piece.format, rows, cols)[0])
    yield replace(piece, name=region_name(piece.name, SCALES), at=at, role=SCALES)


def groups_of(pieces: tuple[Piece, ...]) -> dict[int, tuple[int, ...]]:
    """Number of a piece -> all pieces that make up its part of its expert, itself included."""
    found: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for number, piece in enumerate(pieces):
        if piece.part:
            found[piece.name, piece.expert, bank_part(piece.part)].append(number)
    return {number: tuple(group) for group in found.values() for number in group}


def covers_of(pieces: tuple[Piece, ...], sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(file, start, end) each piece finishes: the gap before it too, the last one to the end.

    sizes: bytes of every source file.
    """
    last_end: dict[int, int] = defaultdict(int)
    final = {piece.file: number for number, piece in enumerate(pieces)}
    last = {(piece.file, piece.end): number for number, piece in enumerate(pieces)}
    for number, piece in enumerate(pieces):
        end = sizes[piece.file] if final[piece.file] == number else piece.end
        if last[piece.file, piece.end] != number:
            end = last_end[piece.file]  # another piece of the same bytes finishes them
        yield piece.file, last_end[piece.file], end
        last_end[piece.file] = end
