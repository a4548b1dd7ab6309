"""Candidates for the shell's completion: verbs, flags, choices, names of installed models.

Asked at every press of Tab, so nothing heavy is loaded, and no manager is asked or started.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ftman.cli.verbs import VERBS, Verb, parser_of, verb_named
from ftman.config import load_config

AGENT_NAMES = ("claude", "codex", "opencode", "pi", "qwen", "cline")
_MODELS = ("MODEL", "SOURCE", "PREFIX")


def candidates(words: Sequence[str]) -> list[str]:
    """What may stand for the last of `words`, the ones after `ft`."""
    if len(words) <= 1:
        names = [name for verb in VERBS for name in (verb.name, *verb.aliases)]
        every = sorted((*names, "help", "--help", "--version"))
        return _starting(every, words[-1] if words else "")
    if words[0] == "help":
        return _starting([verb.name for verb in VERBS], words[-1])
    verb = verb_named(words[0])
    return [] if verb is None else _of_verb(verb, words[1:])


def _of_verb(verb: Verb, words: Sequence[str]) -> list[str]:
    *before, current = words
    actions = parser_of(verb, argparse.ArgumentParser)._actions
    flags = {flag: action for action in actions for flag in action.option_strings}
    wanting = flags.get(before[-1]) if before else None
    if wanting is not None and wanting.nargs != 0:
        return _values(wanting, current)
    if current.startswith("-"):
        known = [f for f, action in flags.items() if action.help != argparse.SUPPRESS]
        return _starting(sorted(known), current)
    places = [action for action in actions if not action.option_strings]
    num_given = sum(1 for word in before if not word.startswith("-"))
    if not places:
        return []
    return _values(places[min(num_given, len(places) - 1)], current)


def _values(action: argparse.Action, current: str) -> list[str]:
    if action.choices:
        return _starting([str(choice) for choice in action.choices], current)
    if action.metavar == "AGENT":
        return _starting(list(AGENT_NAMES), current)
    if action.metavar in _MODELS:
        return _starting(_installed(), current)
    return []


def _installed() -> list[str]:
    # Loaded here: most presses of Tab ask for verbs and flags.
    from ftman.catalog.index import ManifestFolder

    return [name.short for name in ManifestFolder(load_config().paths.manifests).names()]


def _starting(words: Sequence[str], current: str) -> list[str]:
    return [word for word in words if word.startswith(current)]
