"""The web console in a real browser: what a person sees and does on each page.

CONSOLE_SCREENSHOTS=FOLDER keeps a picture of every page, light, dark and narrow, to be looked at.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftman.pull.index import Index, IndexEntry
from ftman.pull.progress import Progress
from tests.e2e.chromium import Browser, find_chromium
from tests.e2e.faults.manager_process import until
from tests.fakes.engine import FakeScript
from tests.fakes.tiny_models import build_tiny
from tests.ftman.gateway.ollama.models import THINKER_TEMPLATE
from tests.ftman.gateway.serving import Manager, Tiny, ids_of, managing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not find_chromium(), reason="no Chromium here: apt install chromium"),
]
SHAPES = {
    "light": (1200, 800, False),
    "dark": (1200, 800, True),
    "narrow": (360, 720, False),
}
PAGES = ("models", "chat", "memory", "logs")
SAID = (
    "<think>A person asks.\nI answer.</think>## An <b>answer</b>\n\nIt has **bold** words, `code` "
    "and <img src=x onerror=\"document.title='broken into'\">.\n\n1. one\n2. two\n   - inner\n\n"
    "```python\nprint('<script>')\n```\n\n> quoted [link](javascript:alert(1))\n"
)


def entries() -> list[IndexEntry]:
    """An index whose models look like real ones; none of them is fetched."""
    common: dict[str, Any] = {"format": "nvfp4", "checked": "", "sources": ("hf://a/b@main",)}
    return [
        IndexEntry(
            name, tag, family, "mit", summary, tag, (tag,), total_params=total,
            active_params=active, bytes=size, **common,
        )
        for name, tag, family, summary, total, active, size in (
            ("glm-5.2", "nvfp4", "glm_moe_dsa", "GLM-5.2: 753B, 40B active per token", 753 * 10**9,
             40 * 10**9, 433_100_000_000),
            ("qwen3.6-35b", "bf16", "qwen3_5_moe", "Qwen3.6 35B, 3B active per token", 35 * 10**9,
             3 * 10**9, 71_000_000_000),
            ("smollm2-moe", "135m-8x", "mixtral", "Eight small experts in one model",
             692_000_000, 214_000_000, 92_000_000),
        )
    ]  # fmt: skip


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A manager with models that talk and think, slowly enough to be watched."""
    models = (
        Tiny("thinker:latest", template=THINKER_TEMPLATE, capabilities=("completion", "thinking"),
             context=2048),
        Tiny("vectors:latest", capabilities=("embedding",), seed=1),
    )  # fmt: skip
    script = FakeScript(tokens=ids_of(SAID), token_s=0.004, total_bytes=1_900_000_000)
    with managing(tmp_path_factory.mktemp("home"), script, models) as running:
        running.service._index = Index(entries())
        yield running


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A manager on its first day."""
    with managing(tmp_path_factory.mktemp("empty"), FakeScript(), ()) as running:
        yield running


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests of this file."""
    started = Browser(find_chromium(), tmp_path_factory.mktemp("browser") / "profile")
    yield started
    started.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser, wide and light; a test that leaves errors behind fails."""
    chromium.shape(*SHAPES["light"][:2], dark=False)
    chromium.problems.clear()
    yield chromium
    chromium.command("Page.navigate", url="about:blank")
    assert chromium.problems == []


def picture(browser: Browser, name: str) -> None:
    folder = os.environ.get("CONSOLE_SCREENSHOTS", "")
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    for shape, (width, height, dark) in SHAPES.items():
        browser.shape(width, height, dark=dark)
        browser.screenshot(Path(folder) / f"{name}-{shape}.png")
    browser.shape(*SHAPES["light"][:2], dark=False)


def button(text: str) -> str:
    """A selector for one button by its name: marked first, for names are no selectors."""
    return f"[data-test={json.dumps(text)}]"


def press(browser: Browser, text: str) -> None:
    """Press the button or link with this text."""
    named = json.dumps(text)
    browser.wait(
        "(() => { document.querySelectorAll('[data-test]').forEach((n) => delete n.dataset.test);"
        " const found = [...document.querySelectorAll('button, a')].find((n) =>"
        f" n.innerText.trim() === {named} && n.checkVisibility());"
        f" if (found) found.dataset.test = {named}; return Boolean(found); }})()"
    )
    browser.click(button(text))


def says(browser: Browser, text: str, seconds: float = 15.0) -> None:
    """Wait until the page says something."""
    browser.wait(f"document.body.innerText.includes({json.dumps(text)})", seconds)


def test_models_are_listed_and_what_there_is_is_found(browser: Browser, manager: Manager) -> None:
    browser.go(f"{manager.url}/ui")
    says(browser, "3 builds in the index")
    shown = browser.text()
    assert "thinker:latest" in shown
    assert "753B (40B active)" in shown
    assert "433 GB" in shown
    picture(browser, "models")
    browser.click("#search")
    browser.type("qwen")
    says(browser, "1 build in the index")
    assert "glm-5.2" not in browser.text()


def test_an_installed_model_tells_how_it_fits(browser: Browser, manager: Manager) -> None:
    browser.go(f"{manager.url}/ui")
    press(browser, "Fit")
    browser.wait("document.querySelector('.panel .trouble, .panel .plan') !== null")
    assert browser.evaluate("document.querySelector('[aria-expanded=true]') !== null")


def test_a_model_is_weighed_pulled_and_removed(
    browser: Browser, manager: Manager, tmp_path: Path
) -> None:
    source = build_tiny("mixtral", tmp_path / "small-model", dtype="bfloat16")
    browser.go(f"{manager.url}/ui")
    browser.click("#search")
    browser.type(source.as_uri())
    says(browser, "by this very name")
    press(browser, "What it takes")
    says(browser, "this machine has")
    assert "fits" in browser.text(".panel .plan")
    picture(browser, "plan")
    press(browser, "Pull")
    says(browser, "Ready.", 60)
    picture(browser, "pulled")
    press(browser, "Dismiss")
    before = len(manager.http.get("/api/tags").json()["models"])
    browser.click("button.danger")
    browser.wait("document.querySelector('dialog[open]') !== null")
    picture(browser, "remove")
    press(browser, "Remove it")
    browser.wait("document.querySelector('dialog') === null")
    browser.wait(f"document.querySelectorAll('h3').length < {before + 4}")
    assert len(manager.http.get("/api/tags").json()["models"]) == before - 1


class SlowPulls:
    """In place of the service's pull: goes halfway, then waits to be ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def pull(self, name: str, **_: Any) -> AsyncIterator[Progress]:
        try:
            for part in range(1, 6):
                total = 433_100_000_000
                yield Progress("pulling 5c1f2b3a9d10", "sha256:5c1f", total, total * part // 12)
                await asyncio.sleep(0.05)
            await asyncio.Event().wait()
        finally:
            self.ended.append(name)


def test_a_pull_is_watched_and_cancelled(
    browser: Browser, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowPulls()
    monkeypatch.setattr(manager.service, "pull", slow.pull)
    plan = {"name": "glm-5.2", "num_files": 91, "download_bytes": 433_100_000_000,
            "disk_bytes": 433_100_000_000, "need_disk_bytes": 443_000_000_000,
            "free_disk_bytes": 1_200_000_000_000, "fits_disk": True, "license": "mit",
            "total_params": 753 * 10**9, "active_params": 40 * 10**9, "family": "glm_moe_dsa",
            "origin": "hf.co/nvidia/GLM-5.2-NVFP4", "forecast": {
                "fits": False, "reason": "its experts need 418 GB of RAM or disk tier", "device":
                "this machine", "ram_bytes": 418_000_000_000, "machine_ram_bytes": 64_000_000_000,
                "context_tokens": 65536, "vram_bytes": 0, "tier": "memory"}}  # fmt: skip

    async def planned(name: str, **_: Any) -> dict[str, Any]:
        return plan

    monkeypatch.setattr(manager.service, "pull_plan", planned)
    browser.go(f"{manager.url}/ui")
    says(browser, "3 builds in the index")
    press(browser, "What it takes")
    says(browser, "too small")
    assert "does not fit in memory" in browser.text(".warnline")
    press(browser, "Pull it all the same")
    says(browser, "42 %")
    says(browser, "180 GB of 433 GB")
    picture(browser, "pulling")
    browser.evaluate("location.hash = '#/logs'")
    says(browser, "Logs")
    browser.evaluate("location.hash = '#/models'")
    says(browser, "42 %")
    press(browser, "Cancel")
    says(browser, "Cancelled. What was fetched is kept.")
    until(lambda: slow.ended == ["glm-5.2:nvfp4"])
    press(browser, "Dismiss")
    browser.wait("!document.querySelector('main').innerText.includes('Cancelled')")


def test_a_pull_that_fails_says_why(browser: Browser, manager: Manager) -> None:
    browser.go(f"{manager.url}/ui")
    browser.click("#search")
    browser.type("file:///nowhere/model")
    says(browser, "by this very name")
    press(browser, "What it takes")
    browser.wait("document.querySelector('.panel .trouble') !== null")
    assert "nowhere" in browser.text(".panel .trouble")
    picture(browser, "trouble")


def test_a_chat_is_streamed_and_stays_text(browser: Browser, manager: Manager) -> None:
    browser.go(f"{manager.url}/ui#/chat?model=thinker")
    browser.wait("document.activeElement.id === 'message'")
    assert browser.evaluate("[...document.querySelector('#model').options].length") == 1
    browser.type("Is this <b>safe</b>?")
    browser.key("Enter", 13)
    says(browser, "tokens/s", 30)
    assert browser.evaluate("document.title") == "Chat - ft"
    assert (
        browser.evaluate("document.querySelectorAll('.turn img, .turn b, .turn script').length")
        == 0
    )
    assert "<img src=x onerror" in browser.text(".turn.assistant .text")
    assert browser.text(".turn.user .text") == "Is this <b>safe</b>?"
    assert browser.text(".turn strong") == "bold"
    assert browser.text(".code code") == "print('<script>')"
    assert browser.evaluate("document.querySelector('.assistant .thinking').open") is False
    assert browser.evaluate("document.querySelector('.assistant .thoughts').textContent") == (
        "A person asks.\nI answer."
    )
    picture(browser, "chat")


def test_an_answer_can_be_stopped_and_outlives_other_pages(
    browser: Browser, manager: Manager
) -> None:
    browser.go(f"{manager.url}/ui#/chat?model=thinker")
    browser.wait("document.activeElement.id === 'message'")
    browser.type("Write")
    browser.key("Enter", 13)
    browser.wait("document.querySelector('.thinking:not([hidden])') !== null")
    browser.evaluate("location.hash = '#/memory'")
    says(browser, "1 request running")
    picture(browser, "memory")
    browser.evaluate("location.hash = '#/chat'")
    browser.wait("document.activeElement.id === 'message'")
    browser.key("Escape", 27)
    says(browser, "stopped")
    browser.wait("document.querySelector('.composer button.main').checkVisibility()")
    press(browser, "New chat")
    says(browser, "Ask something")
    until(lambda: manager.engine_runs() == 0)


def test_memory_is_divided_and_a_model_unloaded(browser: Browser, manager: Manager) -> None:
    load = {"model": "thinker", "prompt": "", "stream": False}
    assert manager.http.post("/api/generate", json=load).status_code == 200
    browser.go(f"{manager.url}/ui#/memory")
    says(browser, "Weights")
    assert "slots for 64 experts" in browser.text()
    browser.evaluate("document.querySelector('.inline input').value = 40")
    press(browser, "Change")
    says(browser, "40 slots for 64 experts")
    press(browser, "Unload")
    says(browser, "No model is loaded.")
    picture(browser, "memory-empty")


def test_a_log_is_followed_and_filtered(browser: Browser, manager: Manager) -> None:
    folder = manager.config.paths.logs
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "manager.log"
    head = "2026-11-30 05:00:00,000"
    path.write_text(
        f"{head} INFO ftman.gateway: GET /api/tags 200 0.003 s\n" * 30
        + f"{head} WARNING ftman.pull: a source is slow\n{head} ERROR ftman: an <i>error</i>\n"
    )
    browser.go(f"{manager.url}/ui#/logs")
    says(browser, "an <i>error</i>")
    with path.open("a") as log:
        log.write(f"{head} INFO one more line\n")
    says(browser, "one more line")
    picture(browser, "logs")
    browser.click("#filter")
    browser.type("warning")
    browser.wait("!document.querySelector('.log').innerText.includes('GET /api/tags')")
    assert "a source is slow" in browser.text(".log")


def test_the_first_day_is_friendly(browser: Browser, empty: Manager) -> None:
    wanted = {
        "models": "Pull smollm2-moe",
        "chat": "Get a model",
        "memory": "No model is loaded.",
        "logs": "There is no log file yet.",
    }
    for page, text in wanted.items():
        browser.go(f"{empty.url}/ui#/{page}")
        says(browser, text)
        picture(browser, f"empty-{page}")


def test_a_manager_that_is_gone_is_told(browser: Browser, empty: Manager) -> None:
    browser.go(f"{empty.url}/ui#/models")
    says(browser, "Pull smollm2-moe")
    browser.command("Network.enable")
    away = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.command("Network.emulateNetworkConditions", **away)
    browser.evaluate("location.hash = '#/chat'")
    says(browser, "The manager does not answer.")
    picture(browser, "gone")
    browser.command("Network.emulateNetworkConditions", **(away | {"offline": False}))
    press(browser, "Try again")
    says(browser, "Get a model")


@pytest.mark.parametrize("page", PAGES)
def test_every_page_works_by_keyboard_alone(browser: Browser, manager: Manager, page: str) -> None:
    browser.go(f"{manager.url}/ui#/{page}")
    says(browser, "thinker" if page in ("models", "chat") else "Memory")
    browser.evaluate("document.querySelector('.skip').focus()")
    seen = []
    for _ in range(80):
        where = browser.evaluate(
            "(() => { const n = document.activeElement, s = getComputedStyle(n);"
            " const name = n.ariaLabel || n.innerText || n.labels?.[0]?.innerText || n.id;"
            " const ring = s.outlineStyle !== 'none' || n.closest('.composer') !== null;"
            " return n === document.body ? null : [n.tagName, name, ring, n.checkVisibility()];"
            " })()"
        )
        if where is None or where in seen:
            break
        seen.append(where)
        browser.key("Tab", 9)
    assert [stop[1] for stop in seen[:2]] == ["Skip to the page", "ft, to the models"]
    missing = browser.evaluate(
        "[...document.querySelectorAll('main :is(button, input, select, textarea, a)')]"
        ".filter((n) => n.checkVisibility() && !n.disabled && n.tabIndex < 0).length"
    )
    assert missing == 0
    assert all(name and ring and visible for _, name, ring, visible in seen[1:]), seen


@pytest.mark.parametrize("page", PAGES)
def test_nothing_sticks_out_of_a_narrow_window(
    browser: Browser, manager: Manager, page: str
) -> None:
    browser.shape(*SHAPES["narrow"][:2], dark=False)
    browser.go(f"{manager.url}/ui#/{page}")
    says(browser, page.capitalize())
    browser.wait("document.querySelector('main').innerText.length > 30")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_theme_can_be_chosen_and_is_kept(browser: Browser, manager: Manager) -> None:
    browser.go(f"{manager.url}/ui")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = browser.evaluate(ground)
    press(browser, "Theme: system")
    press(browser, "Theme: light")
    says(browser, "Theme: dark")
    dark = browser.evaluate(ground)
    assert dark != light
    browser.go(f"{manager.url}/ui")
    assert browser.evaluate(ground) == dark
    browser.evaluate("localStorage.clear()")
