"""The index: packaged files, own folders, web servers that may be away."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ftman.errors import UsageError
from ftman.names import parse_name
from ftman.pull.index import Index, read_entry_file
from ftman.pull.schema import problems, registry_schema
from tests.fakes.hub import BadHub

ENTRY = """name = "{name}"
family = "llama"
license = "mit"
summary = "a model for tests"
default_tag = "small"
[tag.small]
format = "bf16"
total_params = 10
active_params = 10
bytes = 0
checked = "never"
sources = ["hf://org/{name}@main"]
"""


def write(folder: Path, name: str, text: str) -> Path:
    (folder / "models").mkdir(parents=True, exist_ok=True)
    path = folder / "models" / f"{name}.toml"
    path.write_text(text)
    return path


def test_a_name_without_a_tag_means_the_default_build(tmp_path: Path) -> None:
    index = Index.load((), tmp_path)
    for text in ("smollm2", "SmolLM2:latest", "smollm2:135M"):
        entry = index.find(parse_name(text))
        assert entry is not None
        assert entry.label == "smollm2:135m"
    assert index.default_tag(parse_name("smollm2")) == "135m"
    assert index.find(parse_name("smollm2:nosuch")) is None
    assert index.find(parse_name("user/smollm2")) is None
    assert index.find(parse_name("hf.co/library/smollm2")) is None
    assert index.default_tag(parse_name("nosuch")) is None


def test_search_finds_by_any_word_and_puts_names_first(tmp_path: Path) -> None:
    index = Index.load((), tmp_path)
    assert {entry.name for entry in index.search("smollm2")} == {"smollm2", "smollm2-moe"}
    assert index.search("qwen3")[0].name.startswith("qwen3")
    assert index.search("zzzz") == []
    assert index.search("") == index.all()


def test_a_folder_wins_over_the_packaged_copy(tmp_path: Path) -> None:
    write(tmp_path / "own", "smollm2", ENTRY.format(name="smollm2"))
    index = Index.load((str(tmp_path / "own"),), tmp_path)
    entry = index.find(parse_name("smollm2"))
    assert entry is not None
    assert entry.tag == "small"


def test_a_registry_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        Index.load((str(tmp_path / "nope"),), tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('license = "mit"\n', "", "license is missing"),
        ("bytes = 0", "bytes = -1", "tag.small.bytes must be 0 or more"),
        ("bytes = 0", 'bytes = "x"', "tag.small.bytes must be of type integer"),
        ("bytes = 0", "bytes = 0\nsurprise = 1", "tag.small.surprise is not a known key"),
        ('default_tag = "small"', 'default_tag = "big"', "default_tag 'big' is none of the tags"),
        ('name = "m"', 'name = "n"', "name must be 'm'"),
        ("hf://org/m@main", "ftp://x", "tag.small.sources"),
        ("hf://org/m@main", "pypi://a==1/b.gguf", "tag.small.wheel_sha256 is missing"),
        ('checked = "never"', 'checked = "soon"', "tag.small.checked"),
        ("[tag.small]", "[tag.small", "cannot be read"),
    ],
)
def test_a_bad_file_is_named_with_its_key(tmp_path: Path, old: str, new: str, says: str) -> None:
    text = ENTRY.format(name="m")
    assert old in text
    path = write(tmp_path, "m", text.replace(old, new))
    with pytest.raises(UsageError) as caught:
        read_entry_file(path)
    assert says in caught.value.message
    assert str(path) in caught.value.message


def serve(hub: BadHub, **models: str) -> str:
    lines = ["version = 1", "[models]"]
    for name, text in models.items():
        lines.append(f'{name} = "{hashlib.sha256(text.encode()).hexdigest()}"')
        hub.add(f"/reg/models/{name}.toml", text.encode())
    hub.add("/reg/index.toml", "\n".join(lines).encode())
    return f"{hub.url}/reg"


def test_a_web_registry_is_cached_and_serves_offline(tmp_path: Path) -> None:
    with BadHub() as hub:
        url = serve(hub, m=ENTRY.format(name="m"))
        assert Index.load((url,), tmp_path).find(parse_name("m")) is not None
        asked = len(hub.requests("/reg/models/m.toml"))
        assert Index.load((url,), tmp_path).find(parse_name("m")) is not None
        assert len(hub.requests("/reg/models/m.toml")) == asked
        assert "if-none-match" in hub.requests("/reg/index.toml")[-1].headers
    assert Index.load((url,), tmp_path).find(parse_name("m")) is not None
    assert Index.load((url,), tmp_path / "empty").find(parse_name("m")) is None


def test_a_model_that_left_a_web_registry_leaves_the_cache(tmp_path: Path) -> None:
    with BadHub() as hub:
        url = serve(hub, m=ENTRY.format(name="m"), n=ENTRY.format(name="n"))
        assert Index.load((url,), tmp_path).find(parse_name("n")) is not None
        serve(hub, m=ENTRY.format(name="m"))
        assert Index.load((url,), tmp_path).find(parse_name("n")) is None


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (b"version = 2\n[models]", "version must be 1"),
        (b"version = 1", "models must be a table"),
        (b'version = 1\n[models]\n"../x" = "00"', "is not valid"),
        (b"not toml", "index.toml"),
        (b'version = 1\n[models]\nm = "' + b"0" * 64 + b'"', "does not match the digest"),
    ],
)
def test_a_malformed_web_registry_is_an_error(tmp_path: Path, index: bytes, says: str) -> None:
    with BadHub() as hub:
        url = serve(hub, m=ENTRY.format(name="m"))
        hub.add("/reg/index.toml", index)
        with pytest.raises(UsageError, match=says):
            Index.load((url,), tmp_path)


@pytest.mark.parametrize("url", ["ftp://x/reg", "http://example.org/reg"])
def test_only_safe_registry_urls_are_asked(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="registry"):
        Index.load((url,), tmp_path)


def test_the_checker_refuses_schema_words_it_does_not_know() -> None:
    with pytest.raises(NotImplementedError, match="oneOf"):
        list(problems({}, {"oneOf": []}, ""))
    assert list(problems([], registry_schema(), "")) == [("", "must be of type object")]
