"""API keys: made, looked up, taken away, and never kept as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftman.errors import ConflictError, IntegrityError, NotFoundError, UsageError
from ftman.keys import MANAGE, USE, KeyRing, create_key, key_of, read_keys, remove_key


def test_a_key_is_shown_once_and_found_by_its_text(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    ring = KeyRing(path)
    assert not ring.asks
    secret = create_key(path, "laptop", USE)
    assert secret not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    found = ring.find(secret)
    assert ring.asks
    assert found is not None
    assert (found.name, found.rights, found.manages) == ("laptop", USE, False)
    assert ring.find(secret + "x") is None
    assert ring.find("") is None


def test_keys_made_and_taken_away_count_at_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    ring = KeyRing(path, [key_of("given")])
    first = create_key(path, "a", MANAGE)
    second = create_key(path, "b", USE)
    assert [key.name for key in read_keys(path)] == ["a", "b"]
    remove_key(path, "a")
    assert ring.find(first) is None
    assert ring.find(second) is not None
    assert ring.find("given") is not None


def test_names_are_plain_and_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    for name in ("", "a b", "../x", "x" * 41, "\n"):
        with pytest.raises(UsageError, match="named"):
            create_key(path, name, USE)
    create_key(path, "a", USE)
    with pytest.raises(ConflictError, match="there is a key named a"):
        create_key(path, "a", USE)
    with pytest.raises(NotFoundError, match="no key named"):
        remove_key(path, "b")


@pytest.mark.parametrize("text", ["", "{}", '{"keys": [{"name": "a"}]}', '{"keys": [1]}'])
def test_a_damaged_file_stops_a_start_and_leaves_running_keys_in_force(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "keys.json"
    secret = create_key(path, "a", USE)
    ring = KeyRing(path)
    path.write_text(text)
    with pytest.raises(IntegrityError, match=r"keys\.json cannot be read"):
        KeyRing(path)
    assert ring.find(secret) is not None
