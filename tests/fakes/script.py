"""What a scripted engine does.

Knobs of FakeScript (everything has a harmless default):
  load_s, load_steps        time to ready, and in how many visible byte steps
  total_bytes               what /health and /info call the size of the weights
  load_error                fail to load with this text ("failed" health, then exit code 1)
  tokens                    None = echo the prompt ids for ever in turn; a list = these, then "stop"
  replies                   [[words, tokens], ...] as ids: the tokens of the entry whose words stand
                            last in the prompt; `tokens` where none of them stands there
  token_s                   seconds between two tokens
  tokens_per_s              instead of token_s: the rate of all running requests together, kept by
                            the clock, so that a late token does not delay those after it
  prompt_events             ProgressEvents before the first token
  die_at, die_after, die    die = "kill" (SIGKILL), "segv", "exit:N"; at "start" (before the
                            hello), "load", "ready" (after the first /info), "idle" (0.05 s after
                            it), "prefill" (before the first event), "token" (after die_after
                            tokens of a request were sent)
  last_words                a line on stderr before dying or failing
  hang_after                after n tokens: no more tokens, no more steps; /health goes on
  freeze_after              after n tokens: SIGSTOP itself
  refuse                    answer every /generate with 503 and this text
  stream_error              after `hang_after` tokens (0 if unset) send an ErrorEvent with this text
  lie                       "" or one of: hello_garbage, hello_version, hello_half, info_version,
                            health_garbage, half_line, huge_line, garbage, bad_utf8, no_finish,
                            unknown_event, wrong_type, http_garbage, not_ready (says ready, refuses
                            as if it were loading), other_model (has loaded another one)
  ignore_sigterm            only SIGKILL ends it
  drain_s                   how long SIGTERM lets running requests go on
  orphan_s                  exit after this long without a connection, having had one (-1 = by
                            the rule: 30 s with --adopt, else 5 s)
  memory                    [[seconds after start, bytes], ...]: allocate to that size
  request_log               file that gets one JSON line for each /generate and /embed: {"route",
                            "request"}, the request as it came, its constraint included
  bad_constraint            refuse requests with a constraint: 400, code bad_constraint, this text
  embed_size                numbers in a vector of /embed; each is a function of the input's ids
                            and the pooling, so equal inputs have equal vectors and others do not
  embed_nan                 answer /embed with vectors that hold NaN
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class FakeScript:
    """What the fake engine does; see the top of this file."""

    load_s: float = 0.0
    load_steps: int = 4
    total_bytes: int = 1_000_000
    load_error: str = ""
    tokens: tuple[int, ...] | None = None
    replies: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    token_s: float = 0.0
    tokens_per_s: float = 0.0
    prompt_events: int = 1
    die_at: str = ""
    die_after: int = 0
    die: str = "kill"
    last_words: str = ""
    hang_after: int | None = None
    freeze_after: int | None = None
    refuse: str = ""
    stream_error: str = ""
    lie: str = ""
    ignore_sigterm: bool = False
    drain_s: float = 20.0
    orphan_s: float = -1.0
    memory: tuple[tuple[float, int], ...] = ()
    request_log: str = ""
    bad_constraint: str = ""
    embed_size: int = 8
    embed_nan: bool = False

    def answer_to(self, prompt: tuple[int, ...]) -> tuple[int, ...] | None:
        """The tokens to say after a prompt; None = its echo."""
        text = _words(prompt)
        found = [(text.rfind(_words(words)), tokens) for words, tokens in self.replies]
        at, tokens = max(found, default=(-1, ()), key=lambda entry: entry[0])
        return self.tokens if at < 0 else tokens

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> FakeScript:
        value = json.loads(text or "{}")
        if value.get("tokens") is not None:
            value["tokens"] = tuple(value["tokens"])
        replies = value.get("replies", ())
        value["replies"] = tuple((tuple(words), tuple(tokens)) for words, tokens in replies)
        value["memory"] = tuple((at, size) for at, size in value.get("memory", ()))
        return FakeScript(**value)


def _words(ids: tuple[int, ...]) -> str:
    return f" {' '.join(map(str, ids))} "
