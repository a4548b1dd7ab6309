"""A headless Chromium, driven by its own protocol over a pipe: no driver program, no package.

Source: the DevTools protocol; --remote-debugging-pipe reads commands on descriptor 3, answers on 4,
each ended by a NUL byte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ANSWER_S = 30.0
POLL_S = 0.02
_LAUNCH = (
    "import os, sys; r, w = int(sys.argv[1]), int(sys.argv[2]); "
    "os.dup2(r, 3); os.dup2(w, 4); os.execvp(sys.argv[3], sys.argv[3:])"
)


def find_chromium() -> str:
    """Path of a Chromium, "" where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), "")


class Browser:
    """One browser with one page. `problems`: errors that the page logged or threw."""

    def __init__(self, program: str, folder: Path):
        self.problems: list[str] = []
        self._next_id = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._rest = b""
        to_us, self._from_them = self._pipes()
        argv = [program, "--headless=new", "--no-sandbox", "--remote-debugging-pipe"]
        argv += [f"--user-data-dir={folder}", "--no-first-run", "--disable-gpu", "--disable-sync"]
        argv += ["--disable-background-networking", "--disable-component-update"]
        argv += ["--disable-dev-shm-usage", "--force-color-profile=srgb", "about:blank"]
        read, write = to_us
        launch = [sys.executable, "-c", _LAUNCH, str(read), str(write), *argv]
        log = (folder.parent / "chromium.log").open("wb")
        self._process = subprocess.Popen(
            launch, pass_fds=(read, write), stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        os.close(read)
        os.close(write)
        self._session = self._attach()

    def _pipes(self) -> tuple[tuple[int, int], int]:
        # Both ends that are handed over are moved above 9: 3 and 4 must be free for dup2.
        command_read, self._to_them = os.pipe()
        from_them, answer_write = os.pipe()
        high = tuple(_above_nine(fd) for fd in (command_read, answer_write))
        return (high[0], high[1]), from_them

    def _attach(self) -> str:
        targets = self._command("Target.getTargets", {})["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        attach = {"targetId": target, "flatten": True}
        self._session = str(self._command("Target.attachToTarget", attach)["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            self.command(f"{domain}.enable")
        return self._session

    def close(self) -> None:
        """End the browser and every process of it."""
        os.close(self._to_them)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._from_them)

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command to the page."""
        return self._command(method, parameters, self._session)

    def go(self, url: str) -> None:
        """Load a page and wait until its scripts have run."""
        self.command("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page.   Raises: AssertionError when it throws."""
        found = self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 15.0) -> Any:
        """Ask until the expression is true.   Raises: AssertionError with what the page shows."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            value = self.evaluate(expression)
            if value:
                return value
            time.sleep(POLL_S)
        shown = self.evaluate("document.body.innerText")
        raise AssertionError(f"never true: {expression}\n{shown}\n{self.problems}")

    def text(self, selector: str = "main") -> str:
        """What a part of the page says."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Press a thing in the middle, with the mouse."""
        named = json.dumps(selector)
        self.wait(f"document.querySelector({named}) !== null")
        self.evaluate(f"document.querySelector({named}).scrollIntoView({{block: 'center'}})")
        box = self.evaluate(
            f"(() => {{ const b = document.querySelector({named}).getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        place = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, **place)

    def type(self, text: str) -> None:
        """Text where the focus is."""
        self.command("Input.insertText", text=text)

    def key(self, key: str, code: int, modifiers: int = 0) -> None:
        """One key, down and up: key("Tab", 9)."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.command(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, modifiers=modifiers,
                windowsVirtualKeyCode=code, **(text if kind == "keyDown" else {}),
            )  # fmt: skip

    def shape(self, width: int, height: int, *, dark: bool) -> None:
        """The size of the window, and which theme the system prefers."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """Write what is seen as PNG."""
        found = self.command("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    def _command(
        self, method: str, parameters: dict[str, Any], session: str = ""
    ) -> dict[str, Any]:
        self._next_id += 1
        number = self._next_id
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._to_them, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + ANSWER_S
        while number not in self._answers:
            self._read(until, method)
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self, until: float, method: str) -> None:
        ready, _, _ = select.select([self._from_them], [], [], max(0.0, until - time.monotonic()))
        assert ready, f"no answer to {method} in {ANSWER_S:.0f} s"
        data = os.read(self._from_them, 1 << 20)
        assert data, f"the browser ended during {method}"
        *messages, self._rest = (self._rest + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._event(message["method"], message.get("params", {}))

    def _event(self, method: str, value: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = value["exceptionDetails"]
            self.problems.append(str(details.get("exception", details).get("description", details)))
        elif method == "Log.entryAdded" and value["entry"]["level"] == "error":
            if value["entry"]["source"] == "network":
                return  # a refused request, which the page itself tells of
            self.problems.append(f"{value['entry']['text']} {value['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and value["type"] in ("error", "assert"):
            self.problems.append(str([arg.get("value") for arg in value["args"]]))


def _above_nine(fd: int) -> int:
    held = []
    while fd <= 9:
        held.append(fd)
        fd = os.dup(fd)
    for low in held:
        os.close(low)
    return fd
