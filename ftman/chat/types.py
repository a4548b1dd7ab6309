"""What every dialect is translated to and from: the union of meanings, free of any wire format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Message:
    """One turn. role: system, user, assistant or tool (others pass through to the template)."""

    role: str
    content: str
    thinking: str = ""
    tool_name: str = ""
    tool_call_id: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Calls the assistant made: {"id", "function": {"name", "arguments": mapping}}."""


@dataclass(frozen=True)
class Tool:
    """A function the model may call. parameters: JSON schema; strict: arguments must obey it.

    given: the declaration as the client sent it in OpenAI's shape, for templates. deferred: the
    model may call it (parser, grammar), but no template shows it: a message tells of it instead.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    given: Mapping[str, Any] = field(default_factory=dict)
    deferred: bool = False


@dataclass(frozen=True)
class ToolChoice:
    """Whether a tool is called. "named" means `name` and no other; "required" means any."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""


@dataclass(frozen=True)
class Constraint:
    """What the answer must look like. text: a JSON schema, a regular expression or a Lark grammar;
    "json" means any JSON object. It binds the answer, never the reasoning before it.
    """

    kind: Literal["json", "json_schema", "regex", "lark"]
    text: str = ""


@dataclass(frozen=True)
class Options:
    """Generation options as given; None means "not given", so that defaults can be layered.

    Names and units are Ollama's. stop strings end the text and are not part of it.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    num_ctx: int | None = None
    num_keep: int | None = None
    num_thread: int | None = None
    stop: tuple[str, ...] | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    suppress_tokens: tuple[int, ...] | None = None

    def over(self, base: Options) -> Options:
        """These options where given, `base` elsewhere."""
        names = self.__dataclass_fields__
        picked = {
            n: getattr(self, n) if getattr(self, n) is not None else getattr(base, n) for n in names
        }
        return Options(**picked)


@dataclass(frozen=True)
class ChatRequest:
    """A conversation to continue. keep_alive_s None = the default, negative = forever."""

    model: str
    messages: tuple[Message, ...]
    options: Options = Options()
    keep_alive_s: float | None = None
    logprobs: int | None = None
    template_values: Mapping[str, Any] = field(default_factory=dict)
    request_id: str = ""
    strict_length: bool = False
    """True: a prompt longer than the context is an error. False: cut as Ollama does, and said."""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    think: bool | str | None = None
    """None: as the model does by itself, reasoning told apart. A text is a level of effort. False:
    reasoning that comes all the same is left out, and a note says so."""
    think_if_able: bool = False
    """True: a model that cannot think answers without, noted. False: it is refused."""
    constraint: Constraint | None = None


@dataclass(frozen=True)
class CompletionRequest:
    """A prompt to continue: rendered through the template (Ollama's generate) or `raw`.

    token_ids wins over prompt when given (OpenAI's token-id prompts). context: earlier reply's ids.
    """

    model: str
    prompt: str = ""
    token_ids: tuple[int, ...] | None = None
    raw: bool = False
    system: str | None = None
    template: str | None = None
    suffix: str = ""
    context: tuple[int, ...] = ()
    echo: bool = False
    options: Options = Options()
    keep_alive_s: float | None = None
    logprobs: int | None = None
    request_id: str = ""
    strict_length: bool = False
    think: bool | str | None = None
    think_if_able: bool = False
    constraint: Constraint | None = None


@dataclass(frozen=True)
class TokenText:
    """One token of a delta with its log probability and alternatives (text, logprob, bytes)."""

    text: str
    logprob: float
    data: bytes
    top: tuple[tuple[str, float, bytes], ...] = ()


@dataclass(frozen=True)
class Waiting:
    """Sign of life. phase: "queue", "calibrate", "load" or "prefill", with numbers of its own:
    position in the queue, steps, bytes, tokens."""

    phase: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class TextDelta:
    """New text; may be empty when only logprobs arrive."""

    text: str
    tokens: tuple[TokenText, ...] = ()


@dataclass(frozen=True)
class ThinkingDelta:
    """New text of the model's reasoning, without the marks around it."""

    text: str
    tokens: tuple[TokenText, ...] = ()


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a call. The first of a call has id and name and may have no arguments yet; the
    `arguments` of one index, joined, are one JSON object's text, also of a call that was cut off or
    broken: that one is closed, gets no ToolCall, and a note in Finish tells of it.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    tokens: tuple[TokenText, ...] = ()


@dataclass(frozen=True)
class ToolCall:
    """A call is complete; sent once per index, after its deltas. arguments: the parsed object."""

    index: int
    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Usage:
    """What a request cost. Units: tokens, seconds. load_s includes queueing for a runner."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    total_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    thinking_tokens: int = 0


@dataclass(frozen=True)
class Finish:
    """The end of a good answer. reason: stop, length, load or unload (calls made: count ToolCall).

    context: prompt + reply ids.

    notes are things the user must be told (truncation, an option that could not be honoured).
    """

    reason: str
    usage: Usage = Usage()
    context: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    stop_sequence: str | None = None
    prompt_tokens: tuple[TokenText | None, ...] = ()


ChatEvent = Waiting | ThinkingDelta | TextDelta | ToolCallDelta | ToolCall | Finish


@dataclass(frozen=True)
class Prompt:
    """What the engine is given. anchors are token offsets of block edges; text is for people.

    opening: what the template wrote after the last value, where the reply begins.
    """

    token_ids: tuple[int, ...]
    anchors: tuple[int, ...]
    text: str
    opening: str = ""
