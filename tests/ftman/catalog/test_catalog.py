"""Resolving, committing, copying and deleting."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ftman.catalog import content
from ftman.catalog.catalog import Catalog
from ftman.catalog.model import ModelChanges
from ftman.chat.types import Message
from ftman.errors import IntegrityError, NotFoundError, UsageError
from ftman.names import parse_name
from tests.ftman.catalog.samples import (
    broken_invariants,
    catalog_in,
    make_ftw,
    name_of,
    new_model,
    orphans,
    paths_in,
)


def install(catalog: Catalog, model: str, tag: str = "latest", seed: int = 0, **changes: object):
    ftw_id = make_ftw(catalog.paths, seed)
    return catalog.commit(name_of(model, tag), new_model(ftw_id, **changes))


def free(_: str) -> bool:
    return False


def test_a_committed_model_comes_back_with_all_its_parts(tmp_path: Path) -> None:
    ftw_id = make_ftw(catalog_in(tmp_path).paths)
    catalog_in(tmp_path).commit(
        name_of("m"), new_model(ftw_id, renderer="r", parser="p", requires="0.1.0")
    )
    model = catalog_in(tmp_path).find("m")
    new = new_model(ftw_id)
    for field in ("template", "system", "licenses", "messages", "eos_ids", "load_bytes", "notes"):
        assert getattr(model, field) == getattr(new, field), field
    assert model.parameters == {"temperature": 0.5, "stop": ["<end>"]}
    assert (model.renderer, model.parser, model.requires) == ("r", "p", "0.1.0")
    assert model.details == new.details
    assert model.jinja_path == model.ftw_path / "chat_template.jinja"
    assert model.damaged == ""
    assert model.size_bytes > 2 * 8192
    assert broken_invariants(catalog_in(tmp_path).paths) == []


def test_the_digest_is_the_sha256_of_the_manifest_file(catalog: Catalog) -> None:
    import hashlib

    model = install(catalog, "m")
    path = catalog.paths.manifests.joinpath(*model.name.path_parts)
    assert model.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_info_gives_arrays_only_when_verbose(catalog: Catalog) -> None:
    model = install(catalog, "m")
    assert catalog.info(model).model_info["tokenizer.ggml.tokens"] is None
    assert catalog.info(model, verbose=True).model_info["tokenizer.ggml.tokens"] == ["a"]
    assert catalog.info(model).tensors[0]["name"] == "t"


def test_commit_without_its_weights_is_refused(catalog: Catalog) -> None:
    with pytest.raises(IntegrityError, match="not in the store"):
        catalog.commit(name_of("m"), new_model("0" * 64))
    assert catalog.models() == []


def test_exact_tag_wins(catalog: Catalog) -> None:
    install(catalog, "m", "a")
    install(catalog, "m", "b")
    assert catalog.find("m:b").name.tag == "b"


def test_latest_manifest_wins_over_default_tag(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path, default_tag="a")
    install(catalog, "m", "a")
    install(catalog, "m", "latest")
    assert catalog.find("m").name.tag == "latest"


@pytest.mark.parametrize("text", ["m", "m:latest", "M:LATEST", "library/m"])
def test_default_tag_serves_names_that_leave_it_open(tmp_path: Path, text: str) -> None:
    catalog = catalog_in(tmp_path, default_tag="b")
    install(catalog, "m", "a")
    install(catalog, "m", "b")
    assert catalog.find(text).name.short == "m:b"


def test_only_installed_tag_serves_when_default_is_absent(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path, default_tag="b")
    install(catalog, "m", "135m")
    assert catalog.find("m").name.short == "m:135m"


def test_two_tags_without_default_is_not_found_and_lists_them(catalog: Catalog) -> None:
    install(catalog, "m", "a")
    install(catalog, "m", "b")
    with pytest.raises(NotFoundError) as caught:
        catalog.find("m")
    assert caught.value.message == "model 'm' not found"
    assert caught.value.code == "model_not_found"
    assert "a, b" in caught.value.hint


def test_a_given_tag_is_never_replaced_by_another(catalog: Catalog) -> None:
    install(catalog, "m", "a")
    with pytest.raises(NotFoundError):
        catalog.find("m:c")


def test_not_found_shows_the_name_as_given_and_no_path(catalog: Catalog) -> None:
    with pytest.raises(NotFoundError) as caught:
        catalog.find("Some/Thing:X")
    assert caught.value.message == "model 'Some/Thing:X' not found"
    assert str(catalog.paths.home) not in caught.value.message + caught.value.hint


def test_lookup_adopts_installed_spelling(catalog: Catalog) -> None:
    install(catalog, "LLaMA3", "Q4_K_M")
    assert catalog.find("llama3:q4_k_m").name.short == "LLaMA3:Q4_K_M"


def test_commit_under_another_case_updates_the_installed_name(catalog: Catalog) -> None:
    install(catalog, "foo", "latest")
    install(catalog, "FOO", "Other", seed=1)
    install(catalog, "Foo", "latest", seed=2)
    assert [m.name.short for m in catalog.models()] == ["foo:latest", "foo:Other"]


def test_hosts_and_ports_are_folders(catalog: Catalog) -> None:
    ftw_id = make_ftw(catalog.paths)
    catalog.commit(parse_name("localhost:5000/ns/m:t"), new_model(ftw_id))
    assert catalog.find("localhost:5000/ns/m:t").name.short == "localhost:5000/ns/m:t"


def test_models_are_listed_newest_first(catalog: Catalog) -> None:
    for i, model in enumerate("abc"):
        made = install(catalog, model)
        path = catalog.paths.manifests.joinpath(*made.name.path_parts)
        os.utime(path, (1000 + i, 1000 + i))
    assert [m.name.model for m in catalog.models()] == ["c", "b", "a"]


def test_unreadable_manifests_are_skipped_and_can_be_deleted(catalog: Catalog) -> None:
    install(catalog, "good")
    bad = install(catalog, "bad")
    path = catalog.paths.manifests.joinpath(*bad.name.path_parts)
    path.write_text("{")
    assert [m.name.model for m in catalog.models()] == ["good"]
    with pytest.raises(IntegrityError) as caught:
        catalog.find("bad")
    assert str(catalog.paths.home) not in caught.value.message
    catalog.delete("bad", free)
    assert not path.exists()


def test_stray_files_in_the_manifest_folder_are_passed_over(catalog: Catalog) -> None:
    install(catalog, "m")
    (catalog.paths.manifests / "x").write_text("x")
    (catalog.paths.manifests / "h" / "n" / "m").mkdir(parents=True)
    (catalog.paths.manifests / "h" / "n" / "m" / ".t.1.tmp").write_text("x")
    (catalog.paths.manifests / "h" / "n" / "m" / "deep").mkdir()
    assert [m.name.short for m in catalog.models()] == ["m:latest"]


def test_copy_shares_everything_and_survives_deletion_of_the_source(catalog: Catalog) -> None:
    first = install(catalog, "m", "135m")
    catalog.copy("m", "n")
    catalog.delete("m", free)
    copied = catalog.find("n")
    assert copied.name.short == "n:latest"
    assert copied.digest == first.digest
    assert copied.damaged == ""
    assert broken_invariants(catalog.paths) == []


def test_copy_to_itself_changes_nothing(catalog: Catalog) -> None:
    before = install(catalog, "m")
    catalog.copy("m", "M:Latest")
    assert catalog.models() == [before]


def test_copy_of_something_missing_is_not_found(catalog: Catalog) -> None:
    with pytest.raises(NotFoundError, match="model 'm' not found"):
        catalog.copy("m", "n")


def test_delete_removes_blobs_and_weights_that_only_it_needed(catalog: Catalog) -> None:
    install(catalog, "a", seed=1, system="only a")
    install(catalog, "b", seed=2)
    catalog.delete("a", free)
    assert [m.name.model for m in catalog.models()] == ["b"]
    assert orphans(catalog.paths) == set()
    assert len(list(catalog.paths.ftw.iterdir())) == 1
    assert not (catalog.paths.manifests / "registry.ollama.ai" / "library" / "a").exists()


def test_delete_removes_what_was_said_to_the_model(tmp_path: Path) -> None:
    paths = replace(paths_in(tmp_path), parked=tmp_path / "parked")
    catalog = Catalog(paths, lambda name: None)
    ids = [install(catalog, name, seed=seed).ftw_id for seed, name in enumerate("ab")]
    for ftw_id in ids:
        folder = tmp_path / "parked" / ftw_id
        folder.mkdir(parents=True)
        (folder / "0.park").write_bytes(b"private")
    catalog.delete("a", free)
    assert [path.name for path in (tmp_path / "parked").iterdir()] == ids[1:]


def test_delete_leaves_what_an_engine_uses(catalog: Catalog) -> None:
    model = install(catalog, "a")
    catalog.delete("a", lambda what: what == model.ftw_id)
    assert model.ftw_path.is_dir()
    assert catalog.models() == []


def test_reading_does_not_wait_for_a_writer(catalog: Catalog) -> None:
    install(catalog, "m")
    read = threading.Event()

    def reader() -> None:
        catalog.find("m")
        catalog.models()
        read.set()

    with catalog._lock:
        thread = threading.Thread(target=reader)
        thread.start()
        assert read.wait(5)
    thread.join()


def test_trash_of_an_interrupted_removal_goes_with_the_next_sweep(catalog: Catalog) -> None:
    ftw_id = make_ftw(catalog.paths, 7)
    (catalog.paths.ftw / ftw_id).rename(catalog.paths.ftw / f".trash-{ftw_id}-0")
    assert catalog.sweep([]) > 2 * 8192
    assert list(catalog.paths.ftw.iterdir()) == []


def test_replacing_a_model_drops_its_old_texts_but_not_its_weights(catalog: Catalog) -> None:
    old = install(catalog, "a", seed=1, system="first")
    install(catalog, "a", seed=2, system="second")
    assert orphans(catalog.paths) == {old.ftw_id}


def test_sweep_counts_weights_and_respects_grace_and_keep(catalog: Catalog) -> None:
    kept = install(catalog, "keep", seed=1)
    orphan, used = make_ftw(catalog.paths, 2), make_ftw(catalog.paths, 3)
    blob = catalog.blobs.write(b"orphan")
    assert catalog.sweep([]) == 0
    old = 1_000_000
    for path in [catalog.paths.ftw / orphan, catalog.paths.ftw / used, catalog.blobs.path(blob)]:
        os.utime(path, (old, old))
    freed = catalog.sweep([used])
    assert freed > 2 * 8192
    assert not (catalog.paths.ftw / orphan).exists()
    assert (catalog.paths.ftw / used).exists()
    assert not catalog.blobs.has(blob)
    assert catalog.find("keep") == kept


def test_sweep_does_nothing_while_a_manifest_is_unreadable(catalog: Catalog) -> None:
    bad = install(catalog, "bad")
    catalog.paths.manifests.joinpath(*bad.name.path_parts).write_text("{")
    assert catalog.sweep([], grace_s=-1e9) == 0
    assert bad.ftw_path.is_dir()


def test_derived_model_merges_and_names_its_parent(catalog: Catalog) -> None:
    base = install(catalog, "base", "135m")
    made = catalog.create_from(
        base,
        parse_name("child"),
        ModelChanges(
            system="Be brief.",
            parameters={"temperature": 1, "top_k": 3},
            licenses_added=("Apache", "MIT"),
            messages=(),
        ),
    )
    assert made.system == "Be brief."
    assert made.template == base.template
    assert made.parameters == {"temperature": 1, "top_k": 3, "stop": ["<end>"]}
    assert made.licenses == ("MIT", "Apache")
    assert made.messages == (Message("user", "hi"), Message("assistant", "hello"))
    assert made.parent == made.details.parent_model == "base:135m"
    assert made.ftw_id == base.ftw_id
    assert made.notes == base.notes


def test_a_damaged_base_is_refused(catalog: Catalog) -> None:
    base = replace(install(catalog, "base"), damaged="weights-00000.ftw is missing")
    with pytest.raises(IntegrityError, match="weights-00000"):
        catalog.create_from(base, parse_name("child"), ModelChanges())


HOSTILE = [
    "",
    "../x",
    "/etc/passwd",
    "a/../b",
    "..%2fx",
    "x\0y",
    "x\ny",
    "-rf",
    "~",
    "~/x",
    "$(id)",
    "`id`",
    "m\u0430del",
    "x\u202ey",
    "a" * 4096,
    "x.",
    "x:..",
    "x:a/../../b",
    "a//b",
    "x:",
    ":x",
    "x@sha256:" + "0" * 64,
    "a/b/c/d",
    "C:\\x",
    "x y",
    ".",
    "..",
    "x:.t.1.tmp",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_everywhere_and_touch_nothing(
    catalog: Catalog, name: str
) -> None:
    install(catalog, "m")
    before = sorted(catalog.paths.home.parent.rglob("*"))
    for act in (
        lambda: catalog.find(name),
        lambda: catalog.resolve_installed(name),
        lambda: catalog.copy("m", name),
        lambda: catalog.copy(name, "n"),
        lambda: catalog.delete(name, free),
    ):
        with pytest.raises(UsageError) as caught:
            act()
        assert caught.value.code == "invalid_name"
        assert caught.value.message.isprintable()
        assert len(caught.value.message) < 400
    assert sorted(catalog.paths.home.parent.rglob("*")) == before


def test_case_twins_are_one_model(catalog: Catalog) -> None:
    install(catalog, "Con")
    install(catalog, "CON", seed=4)
    assert len(catalog.models()) == 1


def test_concurrent_commits_and_deletes_keep_the_invariants(catalog: Catalog) -> None:
    ids = [make_ftw(catalog.paths, seed) for seed in range(2)]
    base = catalog.commit(name_of("keep"), new_model(ids[0]))
    errors: list[BaseException] = []

    def churn(seed: int) -> None:
        try:
            for turn in range(12):
                name = name_of(f"m{turn % 2}")
                catalog.commit(name, new_model(ids[0], system=f"{seed} {turn % 3}"))
                with contextlib.suppress(NotFoundError):
                    catalog.delete(name.short, lambda what: what in ids)
                catalog.models()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert broken_invariants(catalog.paths) == []
    assert orphans(catalog.paths) == {ids[1]}
    assert catalog.find("keep") == base


def test_a_thousand_names_list_without_being_read_again(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = install(catalog, "m")
    data = catalog.paths.manifests.joinpath(*model.name.path_parts).read_bytes()
    folder = catalog.paths.manifests / "h" / "n" / "m"
    folder.mkdir(parents=True)
    for i in range(1000):
        (folder / f"t{i}").write_bytes(data)
    found = catalog.models()
    assert len(found) == 1001

    def refuse(*_: object) -> None:
        raise AssertionError("a model that did not change was read again")

    monkeypatch.setattr(content, "read_model", refuse)
    assert catalog.models() == found


def test_config_blob_has_ollamas_keys(catalog: Catalog) -> None:
    model = install(catalog, "m")
    config = json.loads(catalog.blobs.read(model.layers[-1].digest))
    assert config["model_format"] == "gguf"
    assert config["model_type"] == "135M"
    assert config["file_type"] == "Q4_1"
    assert config["ft"]["ftw_id"] == model.ftw_id
