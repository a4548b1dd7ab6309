"""The kernels of latent attention and its indexer, played on the host by the references."""

from __future__ import annotations

import numpy as np
import torch

from ftengine.kernels.dispatch import ReferenceKernels
from ftengine.kernels.latent_operands import IndexHeads, LatentWeights, Turn
from ftengine.kernels.reference.latent import each_head, index_scores
from ftengine.kernels.reference.paged_rows import best_first
from ftengine.kernels.reference.rope import rotate
from tests.ftengine.gpu.host_kernels import Values, array

PAGE = 16
REFERENCE = ReferenceKernels()


def floats(address: int, *shape: int) -> torch.Tensor:
    """float32 memory as a tensor."""
    return torch.from_numpy(array(address, np.float32, *shape))


def strided(address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """float32 memory whose last numbers lie side by side."""
    if 0 in shape:
        return torch.zeros(shape)
    last = sum((count - 1) * step for count, step in zip(shape, strides, strict=True))
    return floats(address, last + 1).as_strided(shape, strides)


def integers(address: int, kind: type, *shape: int) -> torch.Tensor:
    """A copy of index memory."""
    return torch.from_numpy(array(address, kind, *shape).copy())


def turn_of(v: Values, positions: torch.Tensor) -> Turn:
    most = int(positions.max()) + 1
    tables = [floats(v[name], most, v["HALF"]) for name in ("cos", "sin")]
    return Turn(tables[0], tables[1], v["INTERLEAVED"])


def rows_seen(v: Values, table: str, owner: int, stride: int, count: int) -> torch.Tensor:
    """Slots of a sequence's first `count` tokens."""
    pages = integers(v[table] + 4 * owner * stride, np.int32, -(-count // PAGE)).long()
    at = torch.arange(count)
    return pages[at // PAGE] * PAGE + at % PAGE


def owner_of(v: Values, row: int) -> int:
    """The sequence of a token, given by its row behind the first."""
    ends = integers(v["query_start"], np.int32, v["num_sequences"] + 1)[1:]
    return int((ends <= v["first"] + row).sum())


class PlayedLatents:
    """A part of PlayedEngine."""

    _split: Values

    def _latent_store(self, v: Values) -> None:
        tokens, rank, rope = v["num_tokens"], v["RANK"], v["ROPE"]
        positions = integers(v["positions"], np.int32, tokens)
        slots = integers(v["slots"], np.int64, tokens)
        empty = torch.empty(0)
        weights = LatentWeights(floats(v["weight"], rank), v["eps"], empty, empty, 1.0)
        pool = floats(v["pool"], int(slots.max()) // PAGE + 1, 1, PAGE, rank + rope)
        rows = (v["row_stride"], 1)
        REFERENCE.latent_store(
            strided(v["latent"], (tokens, rank), rows),
            strided(v["key"], (tokens, rope), rows),
            weights,
            turn_of(v, positions),
            positions,
            slots,
            pool,
        )

    def _head_product(self, v: Values) -> None:
        weight = floats(v["weight"], v["heads"], v["IN"], v["OUT"])
        self._multiply_heads(v, weight)

    def _head_product_bf16(self, v: Values) -> None:
        bits = array(v["weight"], np.uint16, v["heads"], v["IN"], v["OUT"]).astype(np.uint32) << 16
        self._multiply_heads(v, torch.from_numpy(bits.view(np.float32)))

    def _multiply_heads(self, v: Values, weight: torch.Tensor) -> None:
        shape = (v["num_tokens"], v["heads"], v["IN"])
        x = strided(v["x"], shape, (v["x_stride"], v["x_head_stride"], 1))
        target = (*shape[:2], v["OUT"])
        out = strided(v["out"], target, (v["out_stride"], v["out_head_stride"], 1))
        out.copy_(each_head(x, weight))

    def _latent_split(self, v: Values) -> None:
        """Remembers what is asked; merge computes it whole."""
        self._split = v

    def _merge_latents(self, v: Values) -> None:
        for token in range(v["num_tokens"]):
            self._look(v, token, token, int(array(v["lengths"], np.int32, token + 1)[token]))

    def _latent_chunk(self, v: Values) -> None:
        positions = integers(v["positions"], np.int32, v["num_tokens"])
        for token in range(v["num_tokens"]):
            if v["CHOSEN"]:
                length = int(array(v["lengths"], np.int32, token + 1)[token])
                self._look(v, token, token, length)
            else:
                self._look(v, token, owner_of(v, token), int(positions[token]) + 1)

    def _look(self, v: Values, token: int, owner: int, length: int) -> None:
        """One token's heads over its keys."""
        heads, rank, rope, stride = v["heads"], v["RANK"], v["ROPE"], v["place_stride"]
        position = integers(v["positions"], np.int32, token + 1)[token:]
        if v["CHOSEN"]:
            slots = integers(v["places"] + 4 * owner * stride, np.int32, length).long()
        else:
            slots = rows_seen(v, "places", owner, stride, length)
        absorbed = floats(v["absorbed"] + 4 * token * heads * rank, heads, rank)
        at = v["q"] + 4 * (token * v["q_stride"] + v["head_dim"] - rope)
        key = strided(at, (heads, rope), (v["head_dim"], 1))
        turn = turn_of(v, position)
        cos, sin = turn.cos[position.long()], turn.sin[position.long()]
        q = torch.cat([absorbed, rotate(key[None], cos, sin, turn.interleaved)[0]], dim=1)
        if v["TEMPER"]:
            q = q * floats(v["temper"], int(position) + 1)[-1]
        rows = floats(v["pool"], int(slots.max()) + 1, rank + rope)[slots]
        weights = (q @ rows.T * v["scale"]).softmax(dim=-1)
        out = floats(v["out"] + 4 * token * heads * rank, heads, rank)
        out.copy_(weights @ rows[:, :rank])

    def _index_store(self, v: Values) -> None:
        tokens, size = v["num_tokens"], v["SIZE"]
        positions = integers(v["positions"], np.int32, tokens)
        slots = integers(v["slots"], np.int64, tokens)
        norm = floats(v["weight"], size), floats(v["bias"], size)
        index = IndexHeads(1, size, 1, 1.0, norm[0], norm[1], v["eps"])
        pool = floats(v["pool"], int(slots.max()) // PAGE + 1, 1, PAGE, size)
        key = strided(v["key"], (tokens, size), (v["row_stride"], 1))
        REFERENCE.index_store(key, index, turn_of(v, positions), positions, slots, pool)

    def _index_scores(self, v: Values) -> None:
        tokens, heads, size = v["num_tokens"], v["heads"], v["SIZE"]
        positions = integers(v["positions"], np.int32, tokens)
        turn = turn_of(v, positions)
        q = strided(v["q"], (tokens, heads, size), (v["q_stride"], size, 1))
        q = rotate(q, turn.cos[positions.long()], turn.sin[positions.long()], turn.interleaved)
        factors = strided(v["factors"], (tokens, heads), (v["factor_stride"], 1)) * v["scale"]
        scores = floats(v["scores"], tokens, v["most_keys"])
        for row, position in enumerate(positions.tolist()):
            owner = owner_of(v, row)
            slots = rows_seen(v, "page_table", owner, v["table_stride"], position + 1)
            keys = floats(v["pool"], int(slots.max()) + 1, size)[slots]
            found = index_scores(q[row : row + 1], factors[row : row + 1], keys)
            scores[row, : position + 1] = found[0]

    def _index_choose(self, v: Values) -> None:
        tokens, top_k = v["num_tokens"], v["top_k"]
        positions = integers(v["positions"], np.int32, tokens)
        scores = floats(v["scores"], tokens, v["most_keys"])
        chosen = torch.from_numpy(array(v["chosen"], np.int32, tokens, top_k))
        counts = torch.from_numpy(array(v["counts"], np.int32, tokens))
        for row, position in enumerate(positions.tolist()):
            owner = owner_of(v, row)
            slots = rows_seen(v, "page_table", owner, v["table_stride"], position + 1)
            best = best_first(scores[row : row + 1, : position + 1], top_k)[0]
            chosen[row, : len(best)] = slots[best].int()
            counts[row] = len(best)
