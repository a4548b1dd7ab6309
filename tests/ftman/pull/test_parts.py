"""The small pieces: hashes that survive, journals that tear, ranges that merge."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from ftman.pull.hashing import SavableSha256, file_digest
from ftman.pull.heads import safe_name
from ftman.pull.journal import Journal
from ftman.pull.windows import DoneRanges


def test_a_hash_goes_on_after_a_restart() -> None:
    rng = random.Random(3)
    data = rng.randbytes(300_001)
    first = SavableSha256()
    if not first.can_save:
        pytest.skip("this Python's crypto library does not show SHA256_Init")
    cut = rng.randrange(len(data))
    first.update(data[:cut])
    second = SavableSha256()
    assert second.restore(first.save())
    second.update(data[cut:])
    first.update(b"other")
    assert second.hexdigest() == second.hexdigest() == hashlib.sha256(data).hexdigest()
    assert not SavableSha256().restore("no base64!")
    assert not SavableSha256().restore("AAAA")


def test_without_the_crypto_library_the_hash_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftman.pull.hashing._crypto_library", lambda: None)
    plain = SavableSha256()
    plain.update(b"abc")
    assert plain.hexdigest() == hashlib.sha256(b"abc").hexdigest()
    assert plain.save() == ""
    assert not plain.can_save


def test_git_names_are_checked_like_git_makes_them(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"hello\n")
    # What `git hash-object` prints for this content.
    name = "git-sha1:ce013625030ba8dba906f756967f9e9ca394464a"
    assert file_digest(path, name, lambda count: None) == name
    assert file_digest(path, "", lambda count: None) == ""


def open_journal(folder: Path, identity: str = "x") -> Journal:
    return Journal.open(folder / "j", folder / "data", identity, [(0, 10), (10, 20)])


def test_a_journal_is_taken_up_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    journal = open_journal(tmp_path)
    assert journal.fresh
    journal.note_mirror("u", "e")
    journal.record({0: 4})
    journal.record({1: 20, 0: 7})
    journal.close()
    with (tmp_path / "j").open("ab") as torn:
        torn.write(b'{"pos":{"0":9')
    again = open_journal(tmp_path)
    assert not again.fresh
    assert [segment.pos for segment in again.segments] == [7, 20]
    assert again.etags == {"u": "e"}
    again.record({0: 9})
    again.close()
    assert [segment.pos for segment in open_journal(tmp_path).segments] == [9, 20]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"version":1}',
        b'{"version":9,"identity":"x","segments":[[0,10]]}',
        b'{"version":1,"identity":"x","segments":[["a",10]]}',
        b'{"version":1,"identity":"x","segments":[[0,10]]}\n{"pos":{"0":99}}',
        b'{"version":1,"identity":"x","segments":[[0,10]]}\n{"pos":{"7":1}}',
        b'{"version":1,"identity":"x","segments":[[0,10]]}\n{"pos":3}',
        b'{"version":1,"identity":"y","segments":[[0,10]]}\n{"pos":{"0":5}}',
    ],
)
def test_a_journal_that_does_not_fit_starts_afresh(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "data").write_bytes(b"")
    (tmp_path / "j").write_bytes(text)
    journal = open_journal(tmp_path)
    assert journal.fresh
    assert [(s.start, s.end, s.pos) for s in journal.segments] == [(0, 10, 0), (10, 20, 10)]


def test_a_journal_without_its_data_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    journal = open_journal(tmp_path)
    journal.record({0: 4})
    journal.close()
    (tmp_path / "data").unlink()
    assert open_journal(tmp_path).fresh


def test_done_ranges_agree_with_a_plain_set() -> None:
    rng = random.Random(5)
    ranges, plain = DoneRanges(), set()
    for _ in range(200):
        start = rng.randrange(100)
        end = start + rng.randrange(12)
        ranges.add(start, end)
        plain |= set(range(start, end))
        a = rng.randrange(100)
        b = a + rng.randrange(20)
        assert ranges.covers(a, b) == (set(range(a, b)) <= plain)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a\0b", "..", "x" * 500, "CON", "ä b"])
def test_file_names_on_disk_stay_in_their_folder(name: str, tmp_path: Path) -> None:
    safe = safe_name(name)
    assert (tmp_path / safe).resolve().parent == tmp_path.resolve()
    assert len(safe) <= 200
