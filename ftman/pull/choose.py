"""Which files of a repository or folder make up a model: patterns, quantisation names, splits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from ftman.errors import NotFoundError, UnsupportedError
from ftman.names import printable

POOLING_FILE = "1_Pooling/config.json"
"""How the authors of an embedding model pool; the one file in a folder that matters."""
SAFETENSORS_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "tiktoken.model", POOLING_FILE)
PREFERRED_QUANTS = ("Q4_K_M", "Q4_0", "Q4_1", "MXFP4", "Q8_0", "Q5_K_M", "Q6_K", "BF16", "F16")
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_SAFE = re.compile(r"[^\x00-\x1f\\:]+")


def is_safe_path(name: str) -> bool:
    """True for a relative path that stays below its folder."""
    path = PurePosixPath(name)
    return bool(_SAFE.fullmatch(name)) and not path.is_absolute() and ".." not in path.parts


def flat_name(name: str) -> str:
    """The name of a repository's file in a job, which knows no folders."""
    return name.replace("/", ".") if name == POOLING_FILE else PurePosixPath(name).name


def choose_by_patterns(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Names that match; a pattern without "/" looks at the top folder only.

    Where the weights come twice (model*.safetensors beside consolidated*), one set is taken.
    """
    chosen = [
        name
        for name in names
        if is_safe_path(name)
        and any(
            fnmatchcase(name, pattern) and ("/" in pattern or "/" not in name)
            for pattern in patterns
        )
    ]
    if any(name.startswith("model") and name.endswith(".safetensors") for name in chosen):
        chosen = [name for name in chosen if not name.startswith("consolidated")]
    return sorted(chosen)


def choose_gguf(names: Sequence[str], quant: str, where: str) -> tuple[list[str], str]:
    """The GGUF file (all parts of a split one) of a quantisation, and that quantisation's name.

    quant: a name such as Q4_K_M, a file name, or "" for the host's choice.
    Raises: NotFoundError listing what there is, UnsupportedError for an incomplete split.
    """
    models = sorted(n for n in names if n.lower().endswith(".gguf") and is_safe_path(n))
    models = [n for n in models if not PurePosixPath(n).name.lower().startswith("mmproj")]
    if quant:
        found = [n for n in models if _has_quant(n, quant) or PurePosixPath(n).name == quant]
        return _one_model(found, models, quant, where), quant
    for candidate in PREFERRED_QUANTS:
        found = [n for n in models if _has_quant(n, candidate)]
        if found:
            return _one_model(found, models, candidate, where), candidate
    return _one_model(models, models, "", where), "latest"


def _has_quant(name: str, quant: str) -> bool:
    return re.search(rf"(^|[-._/]){re.escape(quant)}($|[-._/])", name, re.IGNORECASE) is not None


def _one_model(found: Sequence[str], models: Sequence[str], quant: str, where: str) -> list[str]:
    if len(found) > 1:
        shortest = min(found, key=lambda name: (len(_stem(name)), name))
        found = [name for name in found if _stem(name) == _stem(shortest)]
    if not found:
        listed = ", ".join(printable(PurePosixPath(name).name) for name in models[:12])
        raise NotFoundError(
            f"{where} has no GGUF file for {printable(quant)!r}" if quant else f"{where} has none",
            hint=f"It has: {listed}." if listed else "It holds no GGUF files at all.",
            code="model_unknown",
        )
    return require_all_parts(sorted(found), where)


def require_all_parts(names: Sequence[str], where: str) -> list[str]:
    """Check that a split GGUF is complete.   Raises: UnsupportedError naming a missing part."""
    parts = {PurePosixPath(name).name: name for name in names}
    for name in list(parts):
        match = _SPLIT.fullmatch(name)
        if match is None:
            continue
        stem, _, count = match.groups()
        for number in range(1, min(int(count), 9999) + 1):
            wanted = f"{stem}-{number:05d}-of-{count}.gguf"
            if wanted not in parts:
                raise UnsupportedError(
                    f"{where}: {printable(wanted)} is missing beside {printable(name)}",
                    hint="A split GGUF is only usable with all of its parts.",
                )
    return list(names)


def split_siblings(name: str) -> list[str]:
    """All part names of the split GGUF that `name` belongs to; just `name` if it is not split."""
    match = _SPLIT.fullmatch(name)
    if match is None:
        return [name]
    stem, _, count = match.groups()
    return [f"{stem}-{n:05d}-of-{count}.gguf" for n in range(1, min(int(count), 9999) + 1)]


def _stem(name: str) -> str:
    match = _SPLIT.fullmatch(name)
    return match.group(1) if match else name
