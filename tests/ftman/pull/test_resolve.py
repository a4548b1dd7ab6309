"""What a name means: hub repositories, quantisations, folders, files."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest

from ftman.clock import SYSTEM
from ftman.errors import FtmanError, NetworkError, NotFoundError, UnsupportedError, UsageError
from ftman.pull.choose import choose_by_patterns, choose_gguf, require_all_parts, split_siblings
from ftman.pull.download import Downloader
from ftman.pull.folder import local_name, resolve_local
from ftman.pull.https import resolve_url
from ftman.pull.hub import HubPlace, parse_hub, resolve_hub
from ftman.pull.index import Index, IndexEntry
from ftman.pull.resolve import Resolver, Wanted
from ftman.pull.span import Health, Tools
from ftman.pull.transport import Transport
from tests.fakes.hub import COMMIT, BadHub
from tests.ftman.pull.conftest import SETTINGS, Station, gguf_bytes, options

DATA = gguf_bytes(50_000)
GGUFS = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-IQ4_XS.gguf", "mmproj-m.gguf"]


def test_a_quantisation_name_chooses_its_file() -> None:
    assert choose_gguf(GGUFS, "q8_0", "x") == (["m-Q8_0.gguf"], "q8_0")
    assert choose_gguf(GGUFS, "", "x") == (["m-Q4_K_M.gguf"], "Q4_K_M")
    assert choose_gguf(GGUFS, "m-IQ4_XS.gguf", "x")[0] == ["m-IQ4_XS.gguf"]
    assert choose_gguf(["only.gguf"], "", "x") == (["only.gguf"], "latest")
    with pytest.raises(NotFoundError) as caught:
        choose_gguf(GGUFS, "Q2_K", "hf.co/a/b")
    assert "m-Q8_0.gguf" in caught.value.hint
    with pytest.raises(NotFoundError, match="has none"):
        choose_gguf(["a.txt"], "", "x")


def test_a_split_gguf_is_taken_whole_or_not_at_all() -> None:
    names = [f"Q8_0/m-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert choose_gguf([*GGUFS[:1], *names], "Q8_0", "x")[0] == names
    with pytest.raises(UnsupportedError, match=r"00002-of-00003\.gguf is missing"):
        require_all_parts([names[0], names[2]], "x")
    assert split_siblings("m-00002-of-00003.gguf")[2] == "m-00003-of-00003.gguf"


def test_patterns_look_at_the_top_folder_and_never_outside() -> None:
    names = ["config.json", "a/config.json", "../config.json", "model-1.safetensors"]
    names += ["consolidated.safetensors", "/etc/x.json"]
    assert choose_by_patterns(names, ("*.safetensors", "*.json")) == [
        "config.json",
        "model-1.safetensors",
    ]
    assert choose_by_patterns(names, ("a/*.json",)) == ["a/config.json"]


@pytest.mark.parametrize("text", ["hf://a", "hf://a/b/../c", "hf://a b/c", "hf://", "hf:///x/y"])
def test_malformed_hub_sources_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_hub(text)


def test_the_hub_gives_commit_sizes_and_digests(hub: BadHub) -> None:
    hub.add_repo("org/m", {"config.json": b"{}", "model.safetensors": DATA, "notes.md": b"x"})
    source, tag = asyncio.run(resolve_hub(HubPlace("org/m"), hub.url))
    assert (source.kind, source.revision, tag) == ("safetensors", COMMIT, "latest")
    kinds = {file.name: file.digest.partition(":")[0] for file in source.files}
    assert kinds == {"config.json": "git-sha1", "model.safetensors": "sha256"}
    assert all(COMMIT in file.mirrors[0].url for file in source.files)


def test_a_lying_small_file_is_caught_by_its_git_name(station: Station, hub: BadHub) -> None:
    hub.add_repo("org/m", {"config.json": b"{}", "model.safetensors": DATA})
    hub.script(f"/org/m/resolve/{COMMIT}/config.json", "flip@1")
    with pytest.raises(FtmanError, match="digest mismatch"):
        station.pull("hf.co/org/m", replace(options(), hub_endpoint=hub.url))


def test_hub_names_choose_a_quantisation_by_tag(station: Station, hub: BadHub) -> None:
    hub.add_repo("org/m-GGUF", {"m-Q4_K_M.gguf": DATA, "m-Q8_0.gguf": gguf_bytes(9_000)})
    given = replace(options(), hub_endpoint=hub.url)
    station.pull("hf.co/org/m-GGUF:Q8_0", given)
    assert len(station.weights("hf.co/org/m-GGUF:Q8_0")) == 9_000
    station.pull("https://huggingface.co/org/m-GGUF", given)
    assert station.catalog.find("huggingface.co/org/m-GGUF").name.tag == "Q4_K_M"


def test_hub_refusals_are_told_apart(hub: BadHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(repo: str) -> None:
        asyncio.run(resolve_hub(HubPlace(repo), hub.url))

    with pytest.raises(NotFoundError, match="file does not exist") as caught:
        resolve("org/nosuch")
    assert "hf.co/org/nosuch" in caught.value.hint
    hub.add_repo("org/empty", {"README.md": b"x", "a.safetensors": b"x"})
    with pytest.raises(UnsupportedError, match="no safetensors model that can be used"):
        resolve("org/empty")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(NetworkError, match="HF_HUB_OFFLINE is set"):
        resolve("org/m")


def test_an_unreachable_hub_is_a_network_error(hub: BadHub) -> None:
    with pytest.raises(NetworkError, match=r"hf\.co/org/m cannot be asked"):
        asyncio.run(resolve_hub(HubPlace("org/m"), "http://127.0.0.1:1"))


def test_a_folder_with_safetensors_is_a_model(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json", "notes.txt"):
        (tmp_path / name).write_bytes(b"{}")
    source = resolve_local(tmp_path)
    assert [file.name for file in source.files] == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert all(file.path for file in source.files)
    assert not source.remote


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({}, "no Modelfile or safetensors files found"),
        ({"a.txt": b"x"}, "no Modelfile or safetensors files found"),
        ({"model.safetensors": b"x"}, "no config.json"),
        ({"a.gguf": b"GGUF", "b.gguf": b"GGUF"}, "several .gguf files"),
        ({"a.gguf": b"nope"}, "does not begin like a GGUF"),
        ({"a-00001-of-00002.gguf": b"GGUF"}, "is missing: a split GGUF"),
    ],
)
def test_folders_that_are_no_model_are_told_why(
    tmp_path: Path, names: dict[str, bytes], says: str
) -> None:
    for name, data in names.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(FtmanError, match=says):
        resolve_local(tmp_path)


def test_links_out_of_a_folder_are_refused_except_the_hub_cache(tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / "config.json").symlink_to(outside)
    with pytest.raises(UsageError, match="insecure path"):
        resolve_local(folder)
    cache = tmp_path / "models--a--b"
    snapshot = cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for name in ("config.json", "model.safetensors"):
        (cache / "blobs" / name).write_bytes(b"{}")
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert len(resolve_local(snapshot).files) == 2


@pytest.mark.parametrize(
    ("path", "name"),
    [("My Model.gguf", "My-Model:latest"), ("..x..y.gguf", "x-y:latest"), ("---", "model:latest")],
)
def test_a_path_becomes_a_valid_name(path: str, name: str) -> None:
    assert local_name(Path("/a") / path).short == name


def entry_of(*sources: str, files: tuple[str, ...] = ("m.gguf",)) -> IndexEntry:
    tags = ("t",)
    return IndexEntry(
        "m", "t", "llama", "mit", "for tests", "t", tags, "f32", 1, 1, 0, "never", sources, files
    )


def test_sources_that_hold_the_same_bytes_become_mirrors(hub: BadHub, tmp_path: Path) -> None:
    hub.add_repo("a/m", {"m.gguf": DATA})
    hub.add_repo("b/m", {"m.gguf": DATA})
    hub.add_repo("c/m", {"m.gguf": gguf_bytes(50_000, 3)})
    entry = entry_of("hf://no/such", "hf://a/m", "hf://b/m", "hf://c/m")

    async def run() -> None:
        downloader = Downloader(Tools(Transport(), SETTINGS, SYSTEM, Health()))
        resolver = Resolver(Index([entry]), downloader, hub.url)
        found = await resolver.resolve(Wanted("m"), ("llama",))
        groups = [mirror.group for mirror in found.source.files[0].mirrors]
        assert groups == ["hf://a/m", "hf://b/m"]
        assert found.name.short == "m:t"

    asyncio.run(run())


def test_one_part_of_a_split_gguf_at_a_url_is_refused() -> None:
    downloader = Downloader(Tools(Transport(), SETTINGS, SYSTEM, Health()))
    with pytest.raises(UnsupportedError, match="one part of a split GGUF"):
        asyncio.run(resolve_url("https://x/m-00001-of-00002.gguf", downloader, False))


def test_a_name_with_a_typing_error_is_guessed(station: Station) -> None:
    known = station.index.all()[0].name
    with pytest.raises(NotFoundError) as caught:
        station.pull(known[:-1] + known[-1] * 2)
    assert f"Did you mean {known}" in caught.value.hint


def test_a_place_that_is_none_of_ours_is_told(station: Station) -> None:
    with pytest.raises(NotFoundError) as caught:
        station.pull("s3://bucket/model")
    assert "ft does not fetch from s3://" in caught.value.hint
