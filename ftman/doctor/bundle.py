"""The support bundle: what a person may send to others, with secrets taken out first.

Prompts and answers are never in it: the logs it takes from do not hold them.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ftman import files

LOG_TAIL_BYTES = 1 << 20
MAX_LOGS = 12
HIDDEN = "[hidden]"
_SECRET_NAME = re.compile(
    r"(?i)(token|secret|password|passwd|credential|api[_-]?key|authorization)"
)
_SECRETS = (
    re.compile(r"(?i)(bearer\s+)[A-Za-z0-9._~+/=-]{4,}"),
    re.compile(
        r"(?i)((?:x-api-key|api[_-]?key|token|password|secret)[\"']?\s*[:=]\s*[\"']?)[^\s\"',;&]+"
    ),
    re.compile(r"\b()(?:hf_|sk-|ft-|ghp_|github_pat_)[A-Za-z0-9_-]{8,}"),
    re.compile(r"([a-z][a-z0-9+.-]*://[^/\s:@]*:)[^/\s@]+(?=@)", re.IGNORECASE),
)
_QUERY = re.compile(r"(https?://[^\s?\"']+)\?[^\s\"']+")


def redacted(text: str, home: str, user: str) -> str:
    """Text without keys, tokens, passwords, signed queries, the user's name and home."""
    for pattern in _SECRETS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    text = _QUERY.sub(rf"\1?{HIDDEN}", text)
    if home and home != "/":
        text = text.replace(home, "~")
    return (
        re.sub(rf"(?<![\w-]){re.escape(user)}(?![\w-])", "[user]", text) if len(user) > 3 else text
    )


def safe_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that ft reads; those that hold secrets are named without their value."""
    names = sorted(
        n for n in environ if n.startswith(("FT_", "OLLAMA_", "HF_")) or "PROXY" in n.upper()
    )
    return {name: HIDDEN if _SECRET_NAME.search(name) else environ[name] for name in names}


def write_bundle(
    path: Path, told: Mapping[str, Any], logs: Path, environ: Mapping[str, str]
) -> list[str]:
    """Write a .tar.gz of JSON facts and the ends of logs, all redacted; returns the names in it.

    Raises: OSError when it cannot be written.
    """
    home, user = environ.get("HOME", ""), environ.get("USER", "")
    facts = {**told, "environment": safe_environ(environ)}
    members = {"doctor.json": json.dumps(facts, indent=1, ensure_ascii=False, default=str)}
    members |= {f"logs/{name}": text for name, text in _logs(logs)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in members.items():
            data = redacted(text, home, user).encode()
            entry = tarfile.TarInfo(f"ft-support/{name}")
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    files.write_atomic(path, buffer.getvalue())
    return list(members)


def _logs(folder: Path) -> Iterable[tuple[str, str]]:
    found = list(folder.glob("*.log")) if folder.is_dir() else []
    for path in sorted(found, key=lambda item: -item.stat().st_mtime)[:MAX_LOGS]:
        with files.open_read(path) as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - LOG_TAIL_BYTES))
            yield path.name, log.read(LOG_TAIL_BYTES).decode("utf-8", "replace")
