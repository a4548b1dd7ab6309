"""Whole servers: our manager against llama.cpp's own servers, asked by one HTTP client.

    python -m benchmarks.server MODEL.gguf

Peers: `python -m llama_cpp.server` of FT_PEER_PYTHON, and the native llama-server that
FT_PEER_SERVER names, where it does; ratios are against the faster one. All get 2 threads, a context
of 4096 and one sequence, and answer POST /v1/completions, streamed, greedy, with the same prompts
of random words, none of them asked before. decode = tokens per second after the first;
prefill_512 = seconds to the first token of a prompt of 512. Before: the model was pulled, which
converts it, and the machine was measured once; files are in the page cache.

start = seconds until the first token of a prompt of 16 where no model is loaded, ours / theirs.
Theirs: from the command line that starts the server. Ours: from the request to a manager that has
been up for a while, as one that starts at login has, and so has an engine prepared: what is timed
is the model's load and the prompt, not the imports. start_s also tells ours_unprepared, the same
with FT_PREPARE_ENGINE=off, where the engine's imports count, and ours_from_nothing, from the
command line of a manager, where everything does.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
from tokenizers import Tokenizer

from benchmarks.common import ROOT, interleave, peer_python, report

CONTEXT = 4096
DECODE_PROMPT, DECODE_TOKENS = 32, 96
PREFILL_PROMPT = 512
START_PROMPT = 16
FIRST_TOKENS = 8
"""Asked for where the first one counts: a lone token may be held back, or be no text."""
PORT = "{port}"
POLL_S = 0.005
LIMIT_S = 60.0
END_S = 30.0
PREPARED_S = 8.0
"""What a manager has to itself before it is asked: it prepares its engine after 2 s."""


@dataclass(frozen=True)
class Recipe:
    """How a server is started; PORT stands for its port. model: what it calls the model."""

    name: str
    command: Sequence[str]
    model: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """One streamed answer. Units: monotonic seconds; tokens as told, else pieces of text."""

    asked_s: float
    first_s: float
    last_s: float
    tokens: int


@dataclass(frozen=True)
class Running:
    """A server that was started at `started_s`."""

    recipe: Recipe
    port: int
    started_s: float
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def ask(self, prompt: str, tokens: int) -> Answer:
        """Wait until it answers, then read the whole answer. Raises: RuntimeError."""
        body = {"model": self.recipe.model, "prompt": prompt, "max_tokens": tokens}
        body |= {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        limit_s = time.monotonic() + LIMIT_S
        while time.monotonic() < limit_s and self.process.poll() is None:
            with contextlib.suppress(ConnectionError):
                found = _ask(self.port, json.dumps(body).encode())
                if found is not None:
                    return found
            time.sleep(POLL_S)
        raise RuntimeError(f"{self.recipe.name} did not answer; status {self.process.poll()}")


@contextlib.contextmanager
def running(recipe: Recipe, log: Path) -> Iterator[Running]:
    """A server on a free port of its own; ended afterwards."""
    port = _free_port()
    environment = {name: value for name, value in os.environ.items() if name[:3] != "FT_"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program's is there
    for name, value in recipe.environment.items():
        environment[name] = value.replace(PORT, str(port))
    with log.open("ab") as output:
        started_s = time.monotonic()
        process = subprocess.Popen(
            [word.replace(PORT, str(port)) for word in recipe.command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            yield Running(recipe, port, started_s, process)
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ask(port: int, body: bytes) -> Answer | None:
    """One answer; None while the server says that it is loading."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        asked_s = time.monotonic()
        head = {"Content-Type": "application/json", "Host": "localhost"}
        connection.request("POST", "/v1/completions", body, head)
        reply = connection.getresponse()
        if reply.status == 503:
            return None
        if reply.status != 200:
            raise RuntimeError(f"status {reply.status}: {reply.read(500)!r}")
        return _read(reply, asked_s)
    finally:
        connection.close()


def _read(reply: http.client.HTTPResponse, asked_s: float) -> Answer:
    first_s = last_s = 0.0
    pieces = told = 0
    while line := reply.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        told = (event.get("usage") or {}).get("completion_tokens", told)
        choices = event.get("choices")
        if choices and choices[0].get("text"):
            last_s = time.monotonic()
            first_s = first_s or last_s
            pieces += 1
    if not pieces:
        raise RuntimeError("an answer without text")
    return Answer(asked_s, first_s, last_s, told or pieces)


class Prompts:
    """Texts of random words, each a token of its own; no two begin alike."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        words = [word for word in tokenizer.get_vocab() if word[:1] == "Ġ" and word[1:].isalpha()]
        texts = sorted(" " + word[1:] for word in words if word[1:].isascii())
        found = tokenizer.encode_batch(texts, add_special_tokens=False)
        self._words = [text for text, one in zip(texts, found, strict=True) if len(one.ids) == 1]
        self._random = random.Random(5)

    def text(self, tokens: int) -> str:
        """A text of so many tokens."""
        return "".join(self._random.choices(self._words, k=tokens))


def start_s(recipe: Recipe, prompt: str, log: Path) -> float:
    """Seconds from nothing running to the first token."""
    with running(recipe, log) as server:
        return server.ask(prompt, FIRST_TOKENS).first_s - server.started_s


def first_use_s(recipe: Recipe, prompt: str, log: Path) -> float:
    """Seconds from the first request to its first token, the manager being up for a while."""
    with running(recipe, log) as server:
        _wait_for(server.url)
        setting = recipe.environment.get("FT_PREPARE_ENGINE")
        if setting is not None:
            time.sleep(PREPARED_S)
            told = httpx.get(f"{server.url}/api/ft/status", trust_env=False).json()
            if bool(told["prepared_pid"]) != (setting == "auto"):
                raise RuntimeError(f"{setting}, and the prepared engine is {told['prepared_pid']}")
        answer = server.ask(prompt, FIRST_TOKENS)
        return answer.first_s - answer.asked_s


def decode_s(server: Running, prompt: str) -> float:
    """Seconds a token after the first."""
    answer = server.ask(prompt, DECODE_TOKENS)
    if answer.tokens < DECODE_TOKENS // 2:
        raise RuntimeError(f"{server.recipe.name} gave {answer.tokens} tokens only")
    return (answer.last_s - answer.first_s) / (answer.tokens - 1)


def first_token_s(server: Running, prompt: str) -> float:
    """Seconds from the request to its first token."""
    answer = server.ask(prompt, FIRST_TOKENS)
    return answer.first_s - answer.asked_s


def in_turn(
    servers: Sequence[Running],
    rounds: int,
    measure: Callable[[Running, str], float],
    prompt: Callable[[], str],
) -> dict[str, list[float]]:
    """A B A B: every server gets the same prompt in a round."""
    samples: dict[str, list[float]] = {server.recipe.name: [] for server in servers}
    for _ in range(rounds):
        text = prompt()
        for server in servers:
            samples[server.recipe.name].append(measure(server, text))
    return samples


def compare(samples: Mapping[str, Sequence[float]]) -> float:
    """Median over rounds of the faster peer's seconds / ours."""
    peers = [found for name, found in samples.items() if name != "ours"]
    fastest = min(peers, key=statistics.median)
    return statistics.median(t / o for t, o in zip(fastest, samples["ours"], strict=True))


def ours(home: Path, model: str, threads: int) -> Recipe:
    """Our manager, over the store in `home`."""
    settings = {
        "FT_HOME": str(home),
        "FT_HOST": f"127.0.0.1:{PORT}",
        "FT_THREADS": str(threads),
        "FT_NUM_PARALLEL": "1",
        "FT_CONTEXT_LENGTH": str(CONTEXT),
        "FT_PREPARE_ENGINE": "auto",
        "PYTHONPATH": str(ROOT),
    }
    return Recipe("ours", (sys.executable, "-m", "ftman", "serve"), model, settings)


def peers(gguf: Path, threads: int) -> list[Recipe]:
    """llama.cpp's servers that are here. Ends with a message when there is none."""
    count, window = str(threads), str(CONTEXT)
    binding = [peer_python(), "-m", "llama_cpp.server", "--model", str(gguf.absolute())]
    binding += ["--host", "127.0.0.1", "--port", PORT, "--n_ctx", window, "--n_threads", count]
    binding += ["--n_threads_batch", count, "--flash_attn", "true", "--verbose", "false"]
    found = [Recipe("llama_cpp.server", binding, "peer")]
    native = os.environ.get("FT_PEER_SERVER", "")
    if native:
        command = [native, "-m", str(gguf.absolute()), "--host", "127.0.0.1", "--port", PORT]
        command += ["-c", window, "-t", count, "-tb", count, "-np", "1", "-fa", "on"]
        found.append(Recipe("llama-server", command, "peer"))
    return found


def prepare(gguf: Path, home: Path, threads: int) -> tuple[Recipe, Prompts]:
    """Install the model and have it answer once, so that the machine is measured."""
    recipe = ours(home, gguf.stem, threads)
    with running(recipe, home / "server.log") as server:
        _wait_for(server.url)
        pulled = httpx.post(
            f"{server.url}/api/pull",
            json={"model": gguf.absolute().as_uri(), "stream": False},
            timeout=None,
            trust_env=False,
        )
        if pulled.status_code != 200:
            raise RuntimeError(pulled.text)
        server.ask("Once upon a time", 4)
    (found,) = home.glob("models/ftw/*/tokenizer.json")
    return recipe, Prompts(Tokenizer.from_file(str(found)))


def _wait_for(url: str) -> None:
    limit_s = time.monotonic() + LIMIT_S
    while time.monotonic() < limit_s:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, trust_env=False).status_code == 200:
                return
        time.sleep(POLL_S)
    raise RuntimeError("the manager does not answer")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def measure_starts(
    recipes: Sequence[Recipe], prompt: str, rounds: int, log: Path
) -> dict[str, list[float]]:
    """Seconds to the first token with no model loaded; the first recipe is ours."""
    manager, *others = recipes
    off = replace(manager, environment={**manager.environment, "FT_PREPARE_ENGINE": "off"})
    return interleave(
        rounds,
        ours=lambda: first_use_s(manager, prompt, log),
        ours_unprepared=lambda: first_use_s(off, prompt, log),
        ours_from_nothing=lambda: start_s(manager, prompt, log),
        **{item.name: lambda item=item: start_s(item, prompt, log) for item in others},
    )


def measure(recipes: Sequence[Recipe], prompts: Prompts, rounds: int, log: Path) -> None:
    """Everything, printed as one JSON line."""
    starts = measure_starts(recipes, prompts.text(START_PROMPT), rounds, log)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(running(item, log)) for item in recipes]
        for server in servers:
            server.ask(prompts.text(START_PROMPT), 8)
        decodes = in_turn(servers, rounds, decode_s, lambda: prompts.text(DECODE_PROMPT))
        firsts = in_turn(servers, rounds, first_token_s, lambda: prompts.text(PREFILL_PROMPT))
    own = ("ours_unprepared", "ours_from_nothing")
    start = 1 / compare({name: found for name, found in starts.items() if name not in own})
    ratios = {"decode": compare(decodes), "prefill_512": compare(firsts), "start": start}
    measured = {
        "decode_tokens_per_s": {n: round(1 / statistics.median(s), 1) for n, s in decodes.items()},
        "prefill_512_ms": {n: round(statistics.median(s) * 1e3, 1) for n, s in firsts.items()},
        "start_s": {n: round(statistics.median(s), 3) for n, s in starts.items()},
        "rounds": rounds,
    }
    report("server", {name: round(value, 3) for name, value in ratios.items()}, measured)


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    others = peers(given.gguf, given.threads)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        recipe, prompts = prepare(given.gguf, home, given.threads)
        measure([recipe, *others], prompts, given.rounds, home / "server.log")


if __name__ == "__main__":
    main()
