"""The web console as it is served: whole, closed to everything outside, asking only what exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftman.gateway import console
from ftman.gateway.app import ROUTES
from ftman.gateway.rights import PUBLIC, right_of
from ftman.gateway.routes import Router
from tests.ftman.gateway.serving import Manager

FILES = sorted(console.FOLDER.iterdir())
TEXTS = {path.name: path.read_text("utf-8") for path in FILES if path.suffix != ".png"}
SCRIPTS = {name: text for name, text in TEXTS.items() if name.endswith(".js")}
ROUTE = re.compile(r'^  (\w+): \["([A-Z]+)", "([^"]+)"\],$', re.MULTILINE)
TABLE = {name: (method, path) for name, method, path in ROUTE.findall(SCRIPTS["api.js"])}
LIGHT, DARK = 0, 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_served_with_its_type_and_the_policy(manager: Manager, path: Path) -> None:
    reply = manager.http.get(f"/ui/{path.name}")
    assert reply.status_code == 200
    assert reply.content == path.read_bytes()
    assert reply.headers["content-type"] == console.MEDIA_TYPES[path.suffix]
    policy = dict(part.split(" ", 1) for part in console.POLICY.split("; "))
    assert reply.headers["content-security-policy"] == console.POLICY
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in console.POLICY
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_the_page_itself_and_what_is_no_file(manager: Manager) -> None:
    page = manager.http.get("/ui")
    assert page.text == TEXTS["index.html"]
    assert manager.http.head("/ui").status_code == 200
    assert manager.http.get("/ui/").status_code == 301
    for name in ("nothing.js", "..%2fapp.py", "%2e%2e/errors.py", "%2e", "a/b", "app.js%00"):
        assert manager.http.get(f"/ui/{name}").status_code == 404, name
    assert manager.http.post("/ui").status_code == 405


def test_the_console_obeys_host_and_origin(manager: Manager) -> None:
    assert manager.http.get("/ui", headers={"host": "evil.example"}).status_code == 403
    foreign = {"origin": "https://evil.example"}
    assert manager.http.get("/ui/app.js", headers=foreign).status_code == 403
    same = {"origin": manager.url}
    reply = manager.http.get("/ui/app.js", headers=same)
    assert reply.status_code == 200
    assert "access-control-allow-origin" not in reply.headers


def test_files_need_no_key_but_what_shows_logs_needs_the_right_to_manage() -> None:
    assert right_of("/ui") == right_of("/ui/*") == PUBLIC
    assert right_of("/api/ft/logs") == right_of("/api/ft/logs/*") == "manage"


def test_a_browser_at_the_root_is_told_where_the_console_is(manager: Manager) -> None:
    assert manager.http.get("/", headers={"accept": "*/*"}).text == "Ollama is running"
    page = manager.http.get("/", headers={"accept": "text/html,*/*;q=0.8"})
    assert page.headers["content-type"].startswith("text/html")
    assert "Ollama is running" in page.text
    assert 'href="/ui"' in page.text


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_no_file_names_anything_outside(name: str) -> None:
    outside = re.compile(r"""\b(https?|wss?|ftp|data|blob):|["'(]//|@import|\burl\(""")
    assert outside.findall(TEXTS[name]) == []


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_no_file_makes_html_or_code_of_text(name: str) -> None:
    unsafe = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|createContextual"
        r"|\beval\(|new Function|javascript:| style=| on\w+="
    )
    assert unsafe.findall(TEXTS[name]) == []


def test_everything_that_is_named_exists() -> None:
    named = re.findall(r'(?:from|href=|src=) ?"(/ui/[^"]+)"', "\n".join(TEXTS.values()))
    used = {name.removeprefix("/ui/") for name in named}
    assert used == {path.name for path in FILES} - {"index.html"}


def test_every_route_that_the_scripts_ask_exists() -> None:
    router = Router(ROUTES)
    assert len(TABLE) > 10
    for method, path in TABLE.values():
        found, _ = router.at(f"{path}x" if path.endswith("/") else path)
        assert method in found, f"{method} {path}"


def test_the_scripts_ask_through_the_table_only() -> None:
    for name, text in SCRIPTS.items():
        literals = re.findall(r'["\'`](?:/api|/v1|/metrics)[^"\'`]*', text)
        assert len(literals) == (len(TABLE) if name == "api.js" else 0), name
        assert text.count("fetch(") == (1 if name == "api.js" else 0), name
        assert not re.search(r"XMLHttpRequest|WebSocket|EventSource|sendBeacon", text), name
    used = set(re.findall(r"ROUTES\.(\w+)", "\n".join(SCRIPTS.values())))
    assert used == set(TABLE)


def _colours(theme: int) -> dict[str, str]:
    pairs = re.findall(
        r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", TEXTS["style.css"]
    )
    return {name: colours[theme] for name, *colours in pairs}


def _contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_text_can_be_read_on_every_ground(theme: int) -> None:
    colours = _colours(theme)
    pairs = [(text, ground) for text in ("text", "dim") for ground in ("ground", "panel", "sunk")]
    pairs += [(kind, f"{kind}-soft") for kind in ("good", "warn", "bad")]
    pairs += [("on-accent", "accent"), ("text", "accent-soft"), ("bad", "panel"), ("warn", "panel")]
    low = {
        pair: round(_contrast(colours[pair[0]], colours[pair[1]]), 2)
        for pair in pairs
        if _contrast(colours[pair[0]], colours[pair[1]]) < 4.5
    }
    assert low == {}


def test_a_watch_tells_what_is_loaded_and_ends_unless_it_follows(manager: Manager) -> None:
    body = {"model": "tiny", "prompt": "", "stream": False}
    manager.http.post("/api/generate", json=body)
    reply = manager.http.get("/api/ft/watch")
    (state,) = [json.loads(line) for line in reply.text.splitlines()]
    assert "tiny:latest" in [model["name"] for model in state["ps"]["models"]]
    (inside,) = [m for m in state["experts"]["models"] if m["name"] == "tiny:latest"]
    assert inside["weights_bytes"] > 0
    assert state["jobs"] == []
    with manager.http.stream("GET", "/api/ft/watch?follow=1") as stream:
        lines = stream.iter_lines()
        assert [json.loads(next(lines)).keys() for _ in range(2)] == [state.keys()] * 2


@pytest.fixture
def log_folder(manager: Manager) -> Iterator[Path]:
    folder = manager.config.paths.logs
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "manager.log"
    path.write_text("".join(f"line {number}\n" for number in range(20)))
    yield folder
    path.unlink()


def test_logs_are_listed_and_their_end_is_read(manager: Manager, log_folder: Path) -> None:
    listed = manager.http.get("/api/ft/logs").json()
    assert listed["logs"][0]["name"] == "manager"
    assert manager.http.get("/api/ft/logs/manager?lines=2").text == "line 18\nline 19\n"


def test_a_followed_log_goes_on(manager: Manager, log_folder: Path) -> None:
    path = "/api/ft/logs/manager?lines=1&follow=1"
    with manager.http.stream("GET", path) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "line 19"
        with (log_folder / "manager.log").open("a") as log:
            log.write("and <b>another</b>\n")
        assert next(lines) == "and <b>another</b>"


def test_a_followed_log_ends_with_the_manager(manager: Manager, log_folder: Path) -> None:
    with manager.http.stream("GET", "/api/ft/logs/manager?lines=1&follow=1") as stream:
        lines = stream.iter_lines()
        next(lines)
        manager.service.stopping = True
        try:
            assert list(lines) == []
        finally:
            manager.service.stopping = False


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("nobody", 404),
        ("..%2fmanager", 404),
        ("manager?lines=x", 400),
        ("manager?lines=100000", 400),
        ("manager?follow=yes", 400),
    ],
)
def test_what_is_no_log_is_refused(
    manager: Manager, log_folder: Path, path: str, status: int
) -> None:
    assert manager.http.get(f"/api/ft/logs/{path}").status_code == status
