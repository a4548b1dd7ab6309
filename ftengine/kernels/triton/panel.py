"""Reading panel32.v1 inside kernels: sizes, words to values, one panel times one row.

The layout is docs/panel32.md's and its sizes come from quant/panel_form.py; whole matrices and
experts are the other files' business. Everything computes in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ftengine.quant.panel32 import PANEL_FORMATS

PANEL_ROWS = tl.constexpr(32)
PAIR_ROWS = tl.constexpr(16)
E2M1_DOUBLED = tl.constexpr(0xC8643210 - (1 << 32))
"""Twice the magnitude of each E2M1 code, a nibble each: no subnormal appears on the way, and it
is an int32."""
FP8_SPAN = tl.constexpr(128)
PANELS = {panel.quant.name: panel for panel in PANEL_FORMATS}
"""Read at compile time; a constexpr function may look up data, not call plain functions."""


@triton.constexpr_function
def group_elements(fmt: str) -> int:
    """Columns of a group."""
    return PANELS[fmt].group_elements


@triton.constexpr_function
def group_bytes(fmt: str) -> int:
    """Bytes of one row's group, scales included."""
    return PANELS[fmt].group_bytes


@triton.constexpr_function
def group_words(fmt: str) -> int:
    """Words of one row's group."""
    return PANELS[fmt].words


@triton.constexpr_function
def lead_words(fmt: str) -> int:
    """Words of a group in front of those that hold columns: q4_k's 6-bit scales and minima."""
    return 3 if fmt == "q4_k" else 0


@triton.constexpr_function
def data_words(fmt: str) -> int:
    """Words of one row's group that hold columns."""
    count: int = PANELS[fmt].words - lead_words(fmt)
    return count


@triton.constexpr_function
def group_scale_bytes(fmt: str) -> int:
    """Scale bytes of one row's group."""
    return PANELS[fmt].num_scales * PANELS[fmt].scale_bytes


@triton.constexpr_function
def joined(fmt: str) -> int:
    """Groups that are laid out together."""
    return PANELS[fmt].joined


@triton.constexpr_function
def word_elements(fmt: str) -> int:
    """Columns of a word."""
    count: int = PANELS[fmt].group_elements // data_words(fmt)
    return count


@triton.constexpr_function
def in_halves(fmt: str) -> bool:
    """Whether a word's nibbles belong to columns 16 apart in turn."""
    return fmt in ("q4_0", "q4_1", "mxfp4_gguf")


@triton.constexpr_function
def has_minima(fmt: str) -> bool:
    """Whether a weight is a scale times its code plus an offset of the group."""
    return fmt in ("q4_1", "q4_k")


@triton.constexpr_function
def row_factor(fmt: str) -> str:
    """What the header holds: "" nothing, "row" a factor, "divide" a divisor, "block" factors."""
    header = PANELS[fmt].quant.header
    if header is None:
        return ""
    if header.span:
        return "block"
    return "divide" if header.divides else "row"


@triton.jit
def header_bytes(cols: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Bytes in front of a panel's groups."""
    # one return: Triton compiles what follows a return in a compile-time branch
    size = 0 if row_factor(FORMAT) == "" else 128
    if row_factor(FORMAT) == "block":
        size = (8 * tl.cdiv(cols, FP8_SPAN) + 63) // 64 * 64
    return size


@triton.jit
def panel_bytes(cols: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Bytes of a panel of `cols` columns."""
    whole = tl.cdiv(cols // group_elements(FORMAT), joined(FORMAT))
    return header_bytes(cols, FORMAT) + whole * (32 * joined(FORMAT) * group_bytes(FORMAT))


@triton.jit
def element_in_group(word: tl.tensor, place: tl.constexpr, FORMAT: tl.constexpr) -> tl.tensor:
    """Column, within its group, of element `place` of a word."""
    if FORMAT == "q4_k":
        column = word // 8 * 64 + 4 * (word % 8) + place // 2 + 32 * (place % 2)
    elif in_halves(FORMAT):
        column = 4 * word + place // 2 + 16 * (place % 2)
    else:
        column = word_elements(FORMAT) * word + place
    return column


@triton.jit
def e2m1(code: tl.tensor) -> tl.tensor:
    """Float32 of a nibble."""
    table = tl.full([], E2M1_DOUBLED, tl.int32)
    value = ((table >> ((code & 7) * 4)) & 15).to(tl.float32) * 0.5
    return tl.where((code & 8) != 0, -value, value)


@triton.jit
def e4m3(code: tl.tensor) -> tl.tensor:
    """Float32 of an E4M3 byte; its two NaN codes are NaN."""
    exponent, fraction = (code >> 3) & 15, code & 7
    normal = (((exponent + 120) << 23) | (fraction << 20)).to(tl.float32, bitcast=True)
    value = tl.where(exponent == 0, fraction.to(tl.float32) * 0.001953125, normal)
    value = tl.where((code & 127) == 127, float("nan"), value)
    return tl.where((code & 128) != 0, -value, value)


@triton.jit
def e8m0(code: tl.tensor) -> tl.tensor:
    """Float32 of an E8M0 byte: 2^(code - 127), NaN for 255."""
    bits = tl.where(code == 0, 0x00400000, code << 23)
    bits = tl.where(code == 255, 0x7FC00000, bits)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def nibble_value(code: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Float32 of one nibble before its scale."""
    if FORMAT == "q4_0":
        value = code.to(tl.float32) - 8.0
    elif has_minima(FORMAT):
        value = code.to(tl.float32)
    else:
        value = e2m1(code)
    return value


@triton.jit
def half_value(word: tl.tensor, place: tl.constexpr, FORMAT: tl.constexpr) -> tl.tensor:
    """Float32 of one of the two 16-bit floats of a word."""
    if FORMAT == "bf16":
        bits = word << 16 if place == 0 else word & -65536
        value = bits.to(tl.float32, bitcast=True)
    else:
        half = (word >> (16 * place)).to(tl.int16)
        value = half.to(tl.float16, bitcast=True).to(tl.float32)
    return value


@triton.jit
def word_value(word: tl.tensor, place: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Float32 of element `place` of int32 words, before scales."""
    if FORMAT == "f32":
        value = word.to(tl.float32, bitcast=True)
    elif word_elements(FORMAT) == 2:
        value = half_value(word, place, FORMAT)
    elif FORMAT == "q8_0":
        value = ((word << (24 - 8 * place)) >> 24).to(tl.float32)
    elif word_elements(FORMAT) == 4:
        value = e4m3((word >> (8 * place)) & 255)
    else:
        value = nibble_value((word >> (4 * place)) & 15, FORMAT)
    return value


@triton.jit
def half_scale(at: tl.tensor, live: tl.tensor) -> tl.tensor:
    """Float16 scales at byte addresses, as float32."""
    return tl.load(at.to(tl.pointer_type(tl.float16)), mask=live, other=0.0).to(tl.float32)


@triton.jit
def group_scale(at: tl.tensor, live: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """First scales of groups at byte addresses, as float32."""
    if group_scale_bytes(FORMAT) >= 2:
        scale = half_scale(at, live)
    elif group_elements(FORMAT) == 32:
        scale = e8m0(tl.load(at, mask=live, other=0).to(tl.int32))
    else:
        scale = e4m3(tl.load(at, mask=live, other=0).to(tl.int32))
    return scale


@triton.jit
def block_factor(panel: tl.tensor, group: tl.tensor, row: tl.tensor, live: tl.tensor) -> tl.tensor:
    """fp8_block: the float32 of each group's 128 columns and 16 rows."""
    at = panel + 4 * (2 * (group // 32) + row // 16)
    return tl.load(at.to(tl.pointer_type(tl.float32)), mask=live, other=0.0)


@triton.jit
def six_bits(words: tl.tensor, part: tl.tensor, live: tl.tensor, which: tl.constexpr) -> tl.tensor:
    """q4_k: the 6-bit scale (which 0) or minimum (1) of a part of 32 columns, as float32.

    words: addresses of a group's first word. Source: quant/q4_k.py.
    """
    shift = 8 * (part % 4)
    lower = (tl.load(words + 32 * which, mask=live, other=0) >> shift) & 255
    upper = (tl.load(words + 64, mask=live, other=0) >> (shift + 4 * which)) & 15
    return tl.where(part < 4, lower & 63, upper | (lower >> 6 << 4)).to(tl.float32)


@triton.jit
def factors(
    panel: tl.tensor,
    body: tl.tensor,
    group: tl.tensor,
    word: tl.tensor,
    row: tl.tensor,
    live: tl.tensor,
    parity: tl.constexpr,
    FORMAT: tl.constexpr,
) -> tl.tensor:
    """Scale and offset of the elements of a word; of its even or odd ones where these differ."""
    scale_at, word_at = group_places(group, row, FORMAT)
    factor = tl.where(live, 1.0, 0.0)
    offset = factor * 0.0
    if FORMAT == "q4_k":
        words = body.to(tl.pointer_type(tl.int32)) + word_at
        part = 2 * (word // 8) + parity
        factor = half_scale(body + scale_at, live) * six_bits(words, part, live, 0)
        offset = -half_scale(body + scale_at + 64, live) * six_bits(words, part, live, 1)
    elif group_scale_bytes(FORMAT) > 0:
        factor = group_scale(body + scale_at, live, FORMAT)
        if FORMAT == "q4_1":
            offset = half_scale(body + scale_at + 64, live)
    elif row_factor(FORMAT) == "block":
        factor = block_factor(panel, group, row, live)
    return factor, offset


@triton.jit
def group_places(group: tl.tensor, row: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Where a group's first scale (in bytes) and first word (in words) are after the header."""
    start = group // joined(FORMAT) * (8 * group_bytes(FORMAT) * joined(FORMAT))
    turn = group % joined(FORMAT)
    scale = 4 * start + 32 * group_scale_bytes(FORMAT) * turn
    scale += (1 if group_scale_bytes(FORMAT) == 1 else 2) * row
    words = start + 8 * group_scale_bytes(FORMAT) * joined(FORMAT)
    return scale, words + 32 * group_words(FORMAT) * turn + row


@triton.jit
def row_scaled(
    total: tl.tensor, panel: tl.tensor, row: tl.tensor, FORMAT: tl.constexpr
) -> tl.tensor:
    """A row's sum times the factor in its panel's header."""
    factors = panel.to(tl.pointer_type(tl.float32)) + row
    if row_factor(FORMAT) == "row":
        total *= tl.load(factors)
    elif row_factor(FORMAT) == "divide":
        total /= tl.load(factors)
    return total


@triton.jit
def add_words(
    acc: tl.tensor,
    panel: tl.tensor,
    x: tl.tensor,
    cols: tl.tensor,
    start: tl.tensor,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """acc [BLOCK, 32] plus the products of BLOCK words of each row from word `start` on."""
    row = tl.arange(0, 32)[None, :]
    at = start + tl.arange(0, BLOCK)[:, None]
    group, word = at // data_words(FORMAT), at % data_words(FORMAT)
    live = group < cols // group_elements(FORMAT)
    every = live & (row < 32)
    _, word_at = group_places(group, row, FORMAT)
    body = panel + header_bytes(cols, FORMAT)
    at_word = body.to(tl.pointer_type(tl.int32)) + word_at + 32 * (word + lead_words(FORMAT))
    bits = tl.load(at_word, mask=every, other=0)
    for parity in tl.static_range(2 if FORMAT == "q4_k" else 1):
        part = tl.zeros([BLOCK, 32], tl.float32)
        total_x = tl.zeros([BLOCK, 1], tl.float32)
        for place in tl.static_range(parity, word_elements(FORMAT), 2 if FORMAT == "q4_k" else 1):
            column = group * group_elements(FORMAT) + element_in_group(word, place, FORMAT)
            value = tl.load(x + column, mask=live, other=0.0).to(tl.float32)
            part += word_value(bits, place, FORMAT) * value
            total_x += value
        factor, offset = factors(panel, body, group, word, row, every, parity, FORMAT)
        acc += part * factor
        if has_minima(FORMAT):
            acc += offset * total_x
    return acc


@triton.jit
def panel_dot(
    panel: tl.tensor, x: tl.tensor, cols: tl.tensor, FORMAT: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """The 32 rows of a panel times one row of activations; the order of sums depends on cols only.

    Shape: panel = byte address; x [cols] -> float32 [32].
    """
    acc = tl.zeros([BLOCK, 32], tl.float32)
    for start in range(0, cols // word_elements(FORMAT), BLOCK):
        acc = add_words(acc, panel, x, cols, start, FORMAT, BLOCK)
    return row_scaled(tl.sum(acc, 0), panel, tl.arange(0, 32), FORMAT)
