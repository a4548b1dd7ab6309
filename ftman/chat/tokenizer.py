"""A model's tokenizer: text to ids so that values can never forge control tokens, and ids to text.

Text is encoded whole, as the reference tokenizer does it; the result is then checked: a control id
whose characters come from a value, not from the template, sends the text down the guarded path,
which finds control tokens in template spans only. Ordinary text thus costs one pass and is equal to
the reference by construction. Not here: templates, and which text is a value (render.py).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

from ftengine.protocol import CONTROL_TOKEN
from ftman import files
from ftman.chat.detokenize import Detokenizer, StreamDecoder
from ftman.errors import IntegrityError
from ftman.memory import ROOM

Offsets = list[tuple[int, int]]
_FILE_LIMIT_BYTES = 256 << 20
_BYTES_PER_BYTE = 450
"""What the library and the lists of its result take at most for a byte of text: 425 measured."""
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


@dataclass(frozen=True)
class Span:
    """Part of a text. special: control tokens are recognised here (template text, never values)."""

    text: str
    special: bool = False


class Tokenizer:
    """One model's tokenizer; heavy, so it belongs to a lease and dies with it. Thread-safe."""

    def __init__(self, inner: tokenizers.Tokenizer, config: dict[str, Any], eos: Sequence[int]):
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self._lock = threading.Lock()
        self.special_tokens = _special_texts(config)
        added = inner.get_added_tokens_decoder()
        self._hidden = {idx for idx, token in added.items() if token.special}
        self._control = _promote_markers(inner, added)
        self._matcher = _Matcher(self._control)
        self._unk_id = _unknown_id(inner)
        self._later = _later_pre_tokenizer(inner)
        state = inner.decoder.__getstate__() if inner.decoder is not None else None
        self._detokenizer = Detokenizer(state)
        self.vocab_size = max(inner.get_vocab_size(), max(added, default=-1) + 1)
        self.bos_id = self._named("bos_token")
        self.eos_ids = tuple(dict.fromkeys([*eos, *self._optional("eos_token")]))
        self.adds_bos = self._finds_adds_bos(config.get("add_bos_token"))
        self._ending = self._finds_ending(config.get("add_eos_token"))

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read tokenizer.json and, where present, its two config files from an FTW folder.

        Raises: IntegrityError naming the file that is missing or broken; UnsupportedError.
        """
        path = folder / "tokenizer.json"
        try:
            data = files.read_bytes(path, limit=_FILE_LIMIT_BYTES)
        except OSError as error:
            raise _broken(path, error) from None
        try:
            inner = tokenizers.Tokenizer.from_buffer(data)
        except (ValueError, TypeError) as error:
            raise _broken(path, error) from None
        eos = _read_config(folder / "generation_config.json").get("eos_token_id")
        ids = eos if isinstance(eos, list) else [eos]
        config = _read_config(folder / "tokenizer_config.json")
        return cls(inner, config, [idx for idx in ids if isinstance(idx, int)])

    def encode(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """Encode one text; control tokens are recognised only if `special`. bos: put BOS first
        if this tokenizer adds one and the text does not start with it."""
        ids = self.encode_spans([Span(text, special)])[0]
        return self.with_bos(ids) if bos else ids

    def with_bos(self, ids: list[int]) -> list[int]:
        """Put BOS first where the tokenizer adds one and it is not there yet."""
        if self.adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def encode_input(self, text: str) -> tuple[int, ...]:
        """Encode a text that stands alone, with the marks that the tokenizer puts around it."""
        return (*self.encode(text, bos=True), *self._ending)

    def encode_spans(self, spans: Sequence[Span]) -> tuple[list[int], Offsets]:
        """Encode the spans' texts as one text.

        Shape: ids, and for each id its (start, end) in characters of the joined text.
        """
        text = "".join(span.text for span in spans)
        guard = bytearray(len(text))
        at = 0
        for span in spans:
            if not span.special:
                guard[at : at + len(span.text)] = b"\1" * len(span.text)
            at += len(span.text)
        with self._lock:
            ids, offsets = self._plain(text)
            if next(self._forged(text, ids, offsets, guard), None) is None:
                return ids, offsets
            return self._guarded(text, guard)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of ids. special: also the text of special tokens (left out otherwise)."""
        kept = [i for i in ids if i >= 0 and (special or i not in self._hidden)]
        text: str = self._inner.decode(kept, skip_special_tokens=False)
        return text

    def stream(self, *, special: bool = False, visible: Collection[str] = ()) -> StreamDecoder:
        """Start incremental decoding; its pieces joined equal `decode`. visible: special tokens
        whose text is wanted although others are left out."""
        hidden = set() if special else self._hidden
        if visible and hidden:
            hidden = {idx for idx in hidden if self._raw(idx) not in visible}

        def text_of(idx: int) -> str | None:
            return None if idx in hidden else self._raw(idx)

        return StreamDecoder(self._detokenizer.start(), text_of)

    def token_bytes(self, idx: int) -> bytes:
        """The bytes one token stands for; empty for an id outside the vocabulary."""
        raw = self._raw(idx)
        if raw is None:
            return b""
        return raw.encode() if idx in self._control else self._detokenizer.token_bytes(raw)

    def token_text(self, idx: int) -> str:
        """The text one token stands for; a part of a code point shows as U+FFFD."""
        return self.token_bytes(idx).decode("utf-8", "replace")

    def control_texts(self) -> tuple[str, ...]:
        """Texts of all tokens that values can never produce."""
        return tuple(token.content for token in self._control.values())

    def control_ids(self) -> dict[str, int]:
        """Id of each such token, by its text."""
        return {token.content: idx for idx, token in self._control.items()}

    def is_control(self, idx: int) -> bool:
        """Whether an id is a control token."""
        return idx in self._control

    def _raw(self, idx: int) -> str | None:
        text: str | None = self._inner.id_to_token(idx) if idx >= 0 else None
        return text

    def _plain(self, text: str) -> tuple[list[int], Offsets]:
        """Raises: MemoryError; the library itself would end the process."""
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        with ROOM.take(size * _BYTES_PER_BYTE):
            encoding = self._inner.encode(text, add_special_tokens=False)
            return encoding.ids, encoding.offsets

    def _forged(
        self, text: str, ids: list[int], offsets: Offsets, guard: bytearray
    ) -> Iterator[tuple[int, int]]:
        """Places of control ids that value characters have a part in. An unknown word's id is one
        of them only where it stands for its own text."""
        for token_id, span in zip(ids, offsets, strict=True):
            token = self._control.get(token_id)
            if token is None:
                continue
            start, stop = _core(text, span)
            known = token_id != self._unk_id or text[start:stop] == token.content.strip()
            if known and guard.find(1, start, stop) >= 0:
                yield start, stop

    def _guarded(self, text: str, guard: bytearray) -> tuple[list[int], Offsets]:
        ids: list[int] = []
        offsets: Offsets = []
        at = 0
        for start, stop, token_id in [*self._matcher.find(text, guard), (len(text), len(text), -1)]:
            piece_ids, piece_offsets = self._ordinary(text[at:start], at)
            ids += piece_ids
            offsets += piece_offsets
            if token_id >= 0:
                ids.append(token_id)
                offsets.append((start, stop))
            at = stop
        return ids, offsets

    def _ordinary(self, text: str, base: int) -> tuple[list[int], Offsets]:
        """Encode a text that may hold no control token; `base` is its place in the whole."""
        if not text:
            return [], []
        swap = base > 0 and self._later is not None
        first = self._inner.pre_tokenizer
        self._inner.encode_special_tokens = True
        if swap:
            self._inner.pre_tokenizer = self._later
        try:
            ids, offsets = self._plain(text)
        finally:
            self._inner.encode_special_tokens = False
            if swap:
                self._inner.pre_tokenizer = first
        guard = bytearray(b"\1" * len(text))
        forged = list(self._forged(text, ids, offsets, guard))
        if not forged:
            return ids, [(base + start, base + stop) for start, stop in offsets]
        return self._cut_apart(text, base, forged)

    def _cut_apart(
        self, text: str, base: int, forged: list[tuple[int, int]]
    ) -> tuple[list[int], Offsets]:
        """Some models hold control texts as ordinary pieces: cut inside, so none can be found. A
        control text of one character cannot be written at all and is left out."""
        ids: list[int] = []
        offsets: Offsets = []
        at = 0
        for start, stop in [*forged, (len(text), len(text))]:
            end = start + 1 if stop > start + 1 else start
            piece_ids, piece_offsets = self._ordinary(text[at:end], base + at)
            ids += piece_ids
            offsets += piece_offsets
            at = start + 1
        return ids, offsets

    def _named(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        idx: int | None = self._inner.token_to_id(text) if text else None
        return idx

    def _optional(self, name: str) -> list[int]:
        idx = self._named(name)
        return [] if idx is None else [idx]

    def _finds_adds_bos(self, told: Any) -> bool:
        if self.bos_id is None:
            return False
        if isinstance(told, bool):
            return told
        return bool(self._inner.encode("", add_special_tokens=True).ids[:1] == [self.bos_id])

    def _finds_ending(self, told: Any) -> tuple[int, ...]:
        """What the tokenizer appends to a text that stands alone: an end mark, or nothing."""
        if isinstance(told, bool):
            return self.eos_ids[-1:] if told else ()
        marks = self._inner.encode("", add_special_tokens=True).ids
        return tuple(marks[1:] if marks[:1] == [self.bos_id] and self.adds_bos else marks)[-1:]


class _Matcher:
    """Finds control tokens in template text: leftmost, then longest, as the reference does."""

    def __init__(self, control: dict[int, tokenizers.AddedToken]):
        self._tokens = {token.content: (idx, token) for idx, token in control.items()}
        texts = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    def find(self, text: str, guard: bytearray) -> list[tuple[int, int, int]]:
        """(start, stop, id) of each control token that lies wholly in unguarded characters."""
        found: list[tuple[int, int, int]] = []
        at = floor = 0
        while match := self._pattern.search(text, at):
            start, stop = match.span()
            idx, token = self._tokens[match.group()]
            word = token.single_word and _touches_word(text, start, stop)
            if word or guard.find(1, start, stop) >= 0:
                at = start + 1
                continue
            if token.lstrip:
                start = floor + len(text[floor:start].rstrip())
            if token.rstrip:
                stop = len(text) - len(text[stop:].lstrip())
            found.append((start, stop, idx))
            at = floor = stop
        return found


def _touches_word(text: str, start: int, stop: int) -> bool:
    before, after = text[start - 1 : start], text[stop : stop + 1]
    return bool(re.match(r"\w", before) or re.match(r"\w", after))


def _core(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """A token's own characters: some tokens swallow white space at their sides."""
    start, stop = span
    part = text[start:stop]
    inner = part.strip()
    if not inner:
        return start, stop
    start += len(part) - len(part.lstrip())
    return start, start + len(inner)


def _promote_markers(
    inner: tokenizers.Tokenizer, added: dict[int, tokenizers.AddedToken]
) -> dict[int, tokenizers.AddedToken]:
    """All control tokens. Added tokens that look like markers (<think>, [INST]) are made special
    in memory, so that the library can be told not to match them; runs of spaces and the like stay
    ordinary text."""
    markers = [
        tokenizers.AddedToken(
            token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized,
            special=True,
        )
        for token in added.values()
        if not token.special and CONTROL_TOKEN.fullmatch(token.content)
    ]
    if markers:
        inner.add_special_tokens(markers)
    texts = {token.content for token in markers}
    return {i: token for i, token in added.items() if token.special or token.content in texts}


def _later_pre_tokenizer(inner: tokenizers.Tokenizer) -> Any:
    """The pre-tokenizer for text that does not start the whole, None where it is the same."""
    if inner.pre_tokenizer is None:
        return None
    state = inner.pre_tokenizer.__getstate__()
    spec = json.loads(state)
    parts = spec["pretokenizers"] if spec["type"] == "Sequence" else [spec]
    firsts = [part for part in parts if part.get("prepend_scheme") == "first"]
    if not firsts:
        return None
    for part in firsts:
        part["prepend_scheme"] = "never"
    later = pre_tokenizers.Sequence([])
    later.__setstate__(json.dumps(spec).encode())
    return later


def _unknown_id(inner: tokenizers.Tokenizer) -> int | None:
    """The id of what the vocabulary cannot write, found by trying a character nothing uses."""
    ids = inner.encode("\U0010fffe", add_special_tokens=False).ids
    return ids[-1] if ids else None


def _special_texts(config: dict[str, Any]) -> dict[str, str]:
    texts = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            texts[name] = value
    return texts


def _read_config(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(files.read_bytes(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _broken(path, error) from None
    if not isinstance(value, dict):
        raise _broken(path, "not a JSON object")
    return value


def _broken(path: Path, error: object) -> IntegrityError:
    return IntegrityError(
        f"the tokenizer of this model cannot be read: {path}: {error}",
        hint="Run `ft verify` on the model, or pull it again.",
        code="tokenizer_damaged",
    )
