"""Hugging Face repositories: huggingface_hub for metadata, tokens and endpoint; bytes are ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ftman.errors import FtmanError, NetworkError, NotFoundError, UnsupportedError, UsageError
from ftman.names import printable
from ftman.pull.choose import (
    SAFETENSORS_PATTERNS,
    choose_by_patterns,
    choose_gguf,
    flat_name,
)
from ftman.pull.source import Mirror, ResolvedSource, SourceFile
from ftman.pull.threads import in_thread

HOSTS = ("hf.co", "huggingface.co", "www.huggingface.co")
METADATA_TIMEOUT_S = 30.0
_URL = re.compile(
    r"hf://([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)(?:@([A-Za-z0-9_.-]+))?(?:/([^@]+))?", re.ASCII
)


@dataclass(frozen=True)
class HubPlace:
    """A repository at a revision, and which of its files: patterns, a quantisation or one file."""

    repo: str
    revision: str = "main"
    patterns: tuple[str, ...] = ()
    quant: str = ""


def parse_hub(source: str, patterns: Sequence[str] = ()) -> HubPlace:
    """Read `hf://org/repo[@revision][/file]`.   Raises: UsageError."""
    match = _URL.fullmatch(source)
    if match is None or ".." in source:
        raise UsageError(f"{printable(source)!r} is not hf://org/repo[@revision][/file]")
    repo, revision, file = match.groups()
    wanted = (file,) if file else tuple(patterns)
    return HubPlace(repo, revision or "main", wanted)


async def resolve_hub(place: HubPlace, endpoint: str | None = None) -> tuple[ResolvedSource, str]:
    """Ask the hub for the commit, the files and their digests; returns the source and its tag.

    Raises: NotFoundError, NetworkError (offline, gated), UnsupportedError (no usable files).
    """
    return await in_thread(_resolve, place, endpoint)


def _resolve(place: HubPlace, endpoint: str | None) -> tuple[ResolvedSource, str]:
    # Imported here: it costs memory and start-up time that a manager without a pull never needs.
    import huggingface_hub as hub
    from huggingface_hub import errors as known

    token = hub.get_token()
    api = hub.HfApi(endpoint=endpoint, token=token or False)
    try:
        info = api.model_info(
            place.repo,
            revision=place.revision,
            files_metadata=True,
            timeout=METADATA_TIMEOUT_S,
        )
    except (known.HfHubHTTPError, _transport_error(known), OSError, ValueError) as error:
        raise _mapped(error, place) from error
    commit = str(info.sha or "")
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        raise NetworkError(f"the hub names no commit for {place.repo}@{place.revision}")
    siblings = {str(item.rfilename): item for item in info.siblings or ()}
    names, kind, tag = _choose(list(siblings), place)
    files = []
    for name in names:
        url = hub.hf_hub_url(place.repo, name, revision=commit, endpoint=api.endpoint)
        mirror = Mirror(url, f"hf://{place.repo}", token or "")
        files.append(_source_file(siblings[name], mirror, place))
    if len({file.name for file in files}) != len(files):
        raise UnsupportedError(f"{place.repo} has two files of one name in different folders")
    origin = f"hf://{place.repo}@{place.revision}"
    return ResolvedSource(kind, tuple(files), origin, commit), tag


def _transport_error(known: Any) -> type[Exception]:
    """What the HTTP library beneath the hub's raises: which one that is differs by version."""
    found: type[Exception] = getattr(known, "HTTPError", OSError)
    return found


def _choose(names: list[str], place: HubPlace) -> tuple[list[str], str, str]:
    where = f"hf.co/{place.repo}"
    patterns = place.patterns
    if patterns and any(pattern.lower().endswith(".gguf") for pattern in patterns):
        chosen = choose_by_patterns(names, patterns)
        found, tag = choose_gguf(chosen, "", where)
        return found, "gguf", tag
    has_safetensors = any(name.endswith(".safetensors") for name in names)
    if not patterns and (place.quant or not has_safetensors):
        found, tag = choose_gguf(names, place.quant, where)
        return found, "gguf", tag
    chosen = choose_by_patterns(names, patterns or SAFETENSORS_PATTERNS)
    if not any(name.endswith(".safetensors") for name in chosen) or "config.json" not in chosen:
        raise UnsupportedError(
            f"{where} holds no safetensors model that can be used here",
            hint="It needs config.json and *.safetensors, or a GGUF file.",
        )
    return chosen, "safetensors", "latest"


def _source_file(item: Any, mirror: Mirror, place: HubPlace) -> SourceFile:
    name = flat_name(str(item.rfilename))
    if not isinstance(item.size, int):
        raise NetworkError(f"the hub does not say how large {place.repo}/{printable(name)} is")
    digest = ""
    if item.lfs is not None and re.fullmatch(r"[0-9a-f]{64}", str(item.lfs.sha256)):
        digest = f"sha256:{item.lfs.sha256}"
    elif item.lfs is None and re.fullmatch(r"[0-9a-f]{40}", str(item.blob_id)):
        digest = f"git-sha1:{item.blob_id}"
    return SourceFile(name, item.size, digest, (mirror,))


def _mapped(error: Exception, place: HubPlace) -> FtmanError:
    """The user's form of what huggingface_hub raises."""
    from huggingface_hub import errors as known

    where = f"hf.co/{place.repo}"
    first = printable(str(error).strip().splitlines()[0] if str(error).strip() else repr(error))
    if isinstance(error, known.GatedRepoError):
        return NetworkError(
            f"{where} is gated: {first}",
            hint=f"Accept its licence at https://huggingface.co/{place.repo} and set HF_TOKEN.",
            code="gated",
        )
    response = getattr(error, "response", None)
    missing = known.RepositoryNotFoundError | known.RevisionNotFoundError
    if isinstance(error, missing) or getattr(response, "status_code", 0) == 404:
        what = "revision" if isinstance(error, known.RevisionNotFoundError) else "repository"
        return NotFoundError(
            "pull model manifest: file does not exist",
            hint=f"The hub knows no such {what}: {where}@{place.revision} "
            "(a private one needs HF_TOKEN).",
            code="model_unknown",
        )
    if isinstance(error, known.HFValidationError):
        return UsageError(f"{where} is not a valid repository name: {first}")
    if isinstance(error, known.OfflineModeIsEnabled):
        return NetworkError(f"{where} cannot be asked: HF_HUB_OFFLINE is set")
    return NetworkError(f"{where} cannot be asked: {first}", hint="Check the network, then retry.")
