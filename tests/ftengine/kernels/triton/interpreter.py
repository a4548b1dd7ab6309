"""Runs launches in Triton's interpreter, in a child process: `python -m` this module.

Triton decides when it is imported whether it interprets, and the tests that compile must not be
interpreted. Launches come and results go as pickles over the child's pipes.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ftengine.gpu.kernel_table import Build
from ftengine.kernels.triton.builds import TABLE
from ftengine.kernels.triton.calls import KernelCall, Value

WRITTEN = "written"
FAILED = "failed"


def run_call(build: Build, values: dict[str, Value]) -> None:
    """One launch, tensors changed in place. Only where Triton interprets."""
    kernel = TABLE.kernel(build.kernel)
    function = getattr(importlib.import_module(kernel.module), kernel.function)
    numbers = {name: value for name, value in values.items() if isinstance(value, int)}
    constants = build.values
    grid = kernel.grid({**{k: v for k, v in constants.items() if isinstance(v, int)}, **numbers})
    ordered = [values[argument.name] for argument in kernel.arguments]
    if min(grid) > 0:
        function[grid](*ordered, **constants)


class Interpreter:
    """The parent's end. Tensors of all calls of one run are shared by identity, as on a device."""

    def __init__(self) -> None:
        self._child = _start()
        self._in_flight = False

    def run(self, *calls: KernelCall) -> None:
        """Run launches in order; what they wrote is written here too.

        bfloat16 products become "bf16_wide" ones: the interpreter's are wrong.
        """
        if self._in_flight:  # a test was ended in the middle of a run
            self._child.kill()
            self._child.wait(10)
            self._child = _start()
        self._in_flight = True
        tensors: list[torch.Tensor] = []
        packed = [(_interpretable(call.build), _names(call, tensors)) for call in calls]
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        pickle.dump((tensors, packed), self._child.stdin)
        self._child.stdin.flush()
        kind, answer = pickle.load(self._child.stdout)
        self._in_flight = False
        assert kind == WRITTEN, answer
        for mine, theirs in zip(tensors, answer, strict=True):
            mine.copy_(theirs)

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(10)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", __spec__.name if __spec__ else __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )


def _interpretable(build: Build) -> Build:
    wide = tuple(
        (name, "bf16_wide" if (name, value) == ("DOT", "bf16") else value)
        for name, value in build.constants
    )
    return replace(build, constants=wide)


def _names(call: KernelCall, tensors: list[torch.Tensor]) -> list[tuple[str, bool, Any]]:
    """(name, is a tensor, its place or the value) of every argument."""
    found = []
    for name, value in call.values.items():
        if isinstance(value, torch.Tensor):
            same = [i for i, known in enumerate(tensors) if known is value]
            if not same:
                tensors.append(value)
            found.append((name, True, same[0] if same else len(tensors) - 1))
        else:
            found.append((name, False, value))
    return found


def _serve_one(
    tensors: Sequence[torch.Tensor], calls: Sequence[tuple[Build, list[tuple[str, bool, Any]]]]
) -> tuple[str, Any]:
    try:
        for build, arguments in calls:
            values = {name: tensors[at] if whole else at for name, whole, at in arguments}
            run_call(build, values)
    except Exception as error:  # the child's root: the parent's test fails with it
        return FAILED, f"{type(error).__name__}: {error}"
    return WRITTEN, tensors


def _patch_once() -> None:
    """Let calls between kernels skip what their launch has done: it takes most of the time."""
    from triton.runtime import interpreter  # only in the child

    patched: set[str] = set()

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.fn.__module__ not in patched:
            patched.add(self.fn.__module__)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*arguments, **named)

    interpreter.InterpretedFunction.__call__ = call


def main() -> None:
    """Serve until the parent closes the pipe."""
    _patch_once()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        try:
            tensors, calls = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(_serve_one(tensors, calls), answers)
        answers.flush()


if __name__ == "__main__":
    main()
