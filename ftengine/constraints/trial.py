"""A compilation tried in a process that may be killed: `python -m ftengine.constraints.trial`.

llguidance bounds most of what a grammar can cost, not all of it: a small schema can be compiled for
minutes, into gigabytes, or down the whole stack. One JSON object on stdin says what to compile, one
on stdout how it went; a process that dies has answered too.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from ftengine.constraints.grammar import (
    TRIAL_CPU_S,
    TRIAL_MEMORY_BYTES,
    limits,
    reason_of,
    refused,
)
from ftengine.constraints.worker import STACK_BYTES, start_deep

_WALL_S = 30.0
"""The processor may be busy with the model; time of the clock only ends what hangs."""
_TOKENS = 4
_MB = 1 << 20


@dataclass(frozen=True)
class Job:
    """What to compile, and what it may take. specials: id -> text of special tokens."""

    grammar: str
    vocab_size: int
    eos_ids: tuple[int, ...]
    specials: Mapping[int, str]
    cpu_s: int = TRIAL_CPU_S
    memory_bytes: int = TRIAL_MEMORY_BYTES


@dataclass(frozen=True)
class Verdict:
    """How a compilation went. memory_bytes: what it took, roughly."""

    error: str
    warnings: tuple[str, ...]
    memory_bytes: int


def run_trial(job: Job) -> Verdict:
    """Compile in a child. Raises: RequestError "bad_constraint" naming the limit that was hit."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ftengine.constraints.trial"],
            input=json.dumps(asdict(job)).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise refused(f"compiling it takes more than {_WALL_S:.0f} s; simplify it") from None
    if done.returncode == 0:
        value = json.loads(done.stdout)
        return Verdict(value["error"], tuple(value["warnings"]), value["memory_bytes"])
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise refused(f"compiling it takes more than {job.cpu_s} s; simplify it")
    if done.returncode == -signal.SIGSEGV:
        raise refused("its rules are nested too deeply to be compiled; simplify it")
    raise refused(
        f"compiling it needs more than {job.memory_bytes // _MB} MB of memory or fails "
        f"(status {done.returncode}); simplify it"
    )


class _Vocabulary:
    """Stands in for the model's vocabulary: its size, its special tokens, and bytes."""

    bos_token_id = None

    def __init__(self, job: Job) -> None:
        self.eos_token_id = job.eos_ids[0]
        ordinary = [number for number in range(job.vocab_size) if number not in job.specials]
        self.tokens = [b""] * job.vocab_size
        for place, number in enumerate(ordinary):
            self.tokens[number] = bytes([place % 256])
        for number, text in job.specials.items():
            self.tokens[number] = text.encode("utf-8", "replace")
        self.special_token_ids = list(job.specials)
        self._of_byte = ordinary[:256]

    def __call__(self, text: bytes) -> list[int]:
        """Where only one text can follow, the grammar asks how it is cut into tokens."""
        return [self._of_byte[byte] for byte in text if byte < len(self._of_byte)]


def compile_bounded(job: Job) -> Verdict:
    """In the child: take the limits on, compile, go a few tokens along."""
    vocabulary = LLTokenizer(
        TokenizerWrapper(_Vocabulary(job)),
        n_vocab=job.vocab_size,
        eos_token=list(job.eos_ids),
        slices=[],
    )
    before = _resident_bytes()
    _limit(resource.RLIMIT_CORE, 0)
    used_s = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime)
    _limit(resource.RLIMIT_CPU, used_s + job.cpu_s)
    _limit(resource.RLIMIT_AS, _virtual_bytes() + STACK_BYTES + job.memory_bytes)
    found: list[Verdict] = []

    def work() -> None:
        matcher = LLMatcher(vocabulary, job.grammar, log_level=0, limits=limits())
        _walk(matcher)
        error = reason_of(matcher.get_error()) if matcher.is_error() else ""
        warnings = tuple(reason_of(text) for text in matcher.get_grammar_warnings())
        found.append(Verdict(error, warnings, max(_resident_bytes() - before, 0)))

    start_deep(work, "trial", STACK_BYTES).join()
    return found[0]


def _walk(matcher: LLMatcher) -> None:
    """A few tokens: what a grammar costs and where it breaks shows in its first masks."""
    for _ in range(_TOKENS):
        if matcher.is_error() or matcher.is_stopped():
            return
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error() or not mask:
            return
        matcher.consume_token((mask & -mask).bit_length() - 1)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _resident_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _virtual_bytes() -> int:
    try:
        words = Path("/proc/self/statm").read_text("ascii").split()
        return int(words[0]) * resource.getpagesize()
    except OSError:
        return 4 << 30  # not Linux: the limit is rough there


def main() -> int:
    """Read a job, print a verdict."""
    value = json.load(sys.stdin)
    job = Job(
        value["grammar"],
        value["vocab_size"],
        tuple(value["eos_ids"]),
        {int(number): text for number, text in value["specials"].items()},
        value["cpu_s"],
        value["memory_bytes"],
    )
    sys.stdout.write(json.dumps(asdict(compile_bounded(job))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
