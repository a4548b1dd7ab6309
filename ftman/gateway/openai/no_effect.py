"""Request fields that clients send and that change nothing here: taken, and said in the reply.

A field that no list of this dialect names is unknown, and ignored as clients expect.
"""

from __future__ import annotations

from collections.abc import Iterable

from ftman.gateway.body import Fields

_ANYWHERE = (
    "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options", "moderation", "prediction", "web_search_options", "verbosity",
    "top_n_sigma", "min_tokens", "stop_token_ids", "ignore_eos", "include_stop_str_in_output",
    "skip_special_tokens", "cache_prompt", "cache_salt", "id_slot", "thinking_budget_tokens",
    "reasoning_budget_tokens", "thinking_token_budget", "separate_reasoning", "reasoning_format",
    "add_special_tokens",
)  # fmt: skip
# With names that belong to another route or dialect: a limit at the wrong place is easily missed.
CHAT = ("metadata", "max_output_tokens", "num_predict", "think", "format")
RESPONSES = (
    "max_tokens", "max_completion_tokens", "num_predict", "think", "format", "logprobs",
    "max_tool_calls", "context_management", "access_programs", "image", "client_metadata",
    "background_options",
)  # fmt: skip
_FAMILIES = ("mirostat", "dry_", "xtc_")


def no_effect(fields: Fields, more: Iterable[str] = ()) -> list[str]:
    """One warning that names the given fields without effect; none is an empty list."""
    known = {*_ANYWHERE, *more}
    names = [
        str(name)
        for name in fields.values
        if fields.has(str(name))
        and (str(name).lower() in known or str(name).lower().startswith(_FAMILIES))
    ]
    reasoning = fields.get("reasoning")
    if isinstance(reasoning, dict):  # elsewhere than in chat and responses, anything may be there
        names += [f"reasoning.{name}" for name in ("max_tokens", "exclude") if reasoning.get(name)]
    names += [f"options.{name}" for name in fields.mapping("options") if name != "num_ctx"]
    return [f"no effect on this server: {', '.join(sorted(names))}"] if names else []
