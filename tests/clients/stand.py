"""What clients are tried against: two managers as processes, each behind a recorder.

`scripted` answers by the words of scripted.py; `real` runs the real engine with a small real model.
Used by run.py with the interpreter of `make test`; the clients themselves have interpreters of
their own and know two addresses only.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.clients.recorder import Recorder
from tests.e2e.processes import REAL, manager_process

SCRIPTED = (sys.executable, "-m", "tests.clients.scripted")
REAL_MODEL = "real"
TOOLS_MODEL = "real-tools"
TOOLS_TEMPLATE = (
    "{{ if .Tools }}<|im_start|>system\nTools:{{ range .Tools }} {{ .Function }}{{ end }}\n"
    'Call one as <tool_call>{"name": "x", "arguments": {}}</tool_call><|im_end|>\n{{ end }}'
    "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}"
    '{{ range .ToolCalls }}<tool_call>\n{"name": "{{ .Function.Name }}", '
    '"arguments": {{ .Function.Arguments }}}\n</tool_call>{{ end }}<|im_end|>\n{{ end }}'
    "<|im_start|>assistant\n"
)


@dataclass(frozen=True)
class Stand:
    """The two managers' addresses; `real` is "" where no real model was asked for.

    pulled: the name under which `real` pulled its model.
    """

    scripted: str
    real: str
    pulled: str

    @contextlib.contextmanager
    def recorded(self) -> Iterator[tuple[dict[str, str], list[Recorder]]]:
        """Recorders in front of both, and the environment that tells a suite of them."""
        with Recorder(self.scripted) as scripted, Recorder(self.real or self.scripted) as real:
            where = {"CLIENTS_URL": scripted.url, "CLIENTS_REAL_URL": real.url if self.real else ""}
            yield where | {"CLIENTS_PULL": self.pulled}, [scripted, real]


@contextlib.contextmanager
def standing(home: Path, model: str) -> Iterator[Stand]:
    """Both managers. `model` is what the real one pulls (a name or a file), "" for none."""
    home.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context((home / "lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"clients: another run uses {home}; wait for its end")
        shutil.rmtree(home / "scripted", ignore_errors=True)
        scripted = stack.enter_context(manager_process(home / "scripted", SCRIPTED)).url
        real = ""
        model = Path(model).resolve().as_uri() if model and Path(model).exists() else model
        if model:
            store = home / f"real-{zlib.crc32(model.encode()):08x}"  # kept: pulled once a model
            real = stack.enter_context(manager_process(store, REAL)).url
            prepare(real, model)
        yield Stand(scripted, real, model)


def prepare(url: str, model: str) -> None:
    """Pull the model under a name of ours, and once more with a template that knows tools."""
    with httpx.Client(base_url=url, trust_env=False, timeout=900) as http:
        pulled = http.post("/api/pull", json={"model": model, "stream": False})
        assert pulled.status_code == 200, pulled.text
        names = [entry["name"] for entry in http.get("/api/tags").json()["models"]]
        source = next(name for name in names if not name.startswith((REAL_MODEL, TOOLS_MODEL)))
        for name, template in ((REAL_MODEL, None), (TOOLS_MODEL, TOOLS_TEMPLATE)):
            body = {"model": name, "from": source, "parameters": {"temperature": 0}}
            body |= {"template": template} if template else {}
            made = http.post("/api/create", json=body | {"stream": False})
            assert made.status_code == 200, made.text
