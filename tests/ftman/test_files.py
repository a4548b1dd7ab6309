"""The file layer: atomic, durable, private, and failing where it is told to."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ftman import faults, files


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_and_files_are_private_with_their_parents(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        files.make_dir(tmp_path / "a" / "b" / "c")
        files.write_atomic(tmp_path / "a" / "f", b"x")
    finally:
        os.umask(old)
    assert [mode(tmp_path / p) for p in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert mode(tmp_path / "a" / "f") == 0o600
    files.make_dir(tmp_path / "a" / "b")


def test_a_new_folder_is_durable_in_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_dir", synced.append)
    files.make_dir(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]
    files.make_dir(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_a_new_file_is_made_once_and_whole(tmp_path: Path) -> None:
    files.create_new(tmp_path / "f", b"first")
    with pytest.raises(FileExistsError):
        files.create_new(tmp_path / "f", b"second")
    assert (tmp_path / "f").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_writer_writes_anywhere_and_grows_holes(tmp_path: Path) -> None:
    with files.Writer(tmp_path / "f") as writer:
        assert writer.write_at(10, b"abc") == 3
        writer.append(b"d")
        writer.write_at(0, memoryview(b"xy"))
        assert writer.size() == 14
        writer.truncate(12)
        writer.sync()
    assert (tmp_path / "f").read_bytes() == b"xy" + bytes(8) + b"ab"


def test_a_writer_keeps_content_unless_told_to_truncate(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    files.Writer(tmp_path / "f").close()
    assert (tmp_path / "f").read_bytes() == b"old"
    files.Writer(tmp_path / "f", truncate=True).close()
    assert (tmp_path / "f").read_bytes() == b""


@pytest.mark.parametrize("point", ["files.open", "files.write", "files.fsync", "files.rename"])
def test_a_failed_atomic_write_leaves_the_old_content_alone(tmp_path: Path, point: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    faults.arm(f"{point}:1=error:ENOSPC")
    with pytest.raises(OSError) as caught:
        files.write_atomic(path, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["f"]
    faults.arm("")
    files.write_atomic(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_lock_is_exclusive_and_names_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "run" / "lock"
    with files.Lock(path), pytest.raises(files.LockedError, match=f"process {os.getpid()}"):
        files.Lock(path)
    files.Lock(path).release()


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, os, signal; from pathlib import Path; from ftman import files\n"
        f"lock = files.Lock(Path({str(path)!r}))\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == -9
    files.Lock(path).release()


def test_a_copy_has_its_own_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    assert files.copy_file(tmp_path / "a", tmp_path / "c") == 10
    assert (tmp_path / "c").read_bytes() == b"x" * 10
    assert not (tmp_path / "c").samefile(tmp_path / "a")


def test_removal(tmp_path: Path) -> None:
    deep = files.make_dir(tmp_path / "a" / "b" / "c")
    (tmp_path / "a" / "keep").write_text("x")
    files.remove_empty_parents(deep, tmp_path)
    assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "a" / "keep").exists()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    files.remove_tree(tmp_path / "link")
    assert (tmp_path / "a" / "keep").exists()
    files.remove_tree(tmp_path / "a")
    files.remove_tree(tmp_path / "a")
    files.unlink(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        files.unlink(tmp_path / "gone", missing_ok=False)


def test_empty_parents_outside_the_stop_folder_stay(tmp_path: Path) -> None:
    outside = files.make_dir(tmp_path / "x")
    files.remove_empty_parents(outside, tmp_path / "other")
    assert outside.exists()


def test_walking_and_counting_skip_links(tmp_path: Path) -> None:
    inside = files.make_dir(tmp_path / "in")
    outside = files.make_dir(tmp_path / "out")
    (inside / "a").write_bytes(b"12345")
    (outside / "b").write_bytes(b"1234567")
    (inside / "link").symlink_to(outside / "b")
    (inside / "folder").symlink_to(outside)
    assert [p.name for p in files.walk(inside)] == ["a"]
    assert files.tree_bytes(inside) == 5
    assert files.tree_bytes(tmp_path / "none") == 0


def test_reading_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    assert files.read_bytes(tmp_path / "f", limit=5) == b"12345"
    with pytest.raises(OSError) as caught:
        files.read_bytes(tmp_path / "f", limit=4)
    assert caught.value.errno == errno.EFBIG


def test_hashing_tells_its_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000
    (tmp_path / "f").write_bytes(data)
    counted: list[int] = []
    assert files.sha256_file(tmp_path / "f", counted.append) == hashlib.sha256(data).hexdigest()
    assert sum(counted) == len(data)


def test_free_space_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert files.free_bytes(tmp_path / "a" / "b") > 0


def test_a_log_is_appended_to(tmp_path: Path) -> None:
    for text in (b"a", b"b"):
        with files.open_log(tmp_path / "logs" / "x.log") as log:
            log.write(text)
    assert (tmp_path / "logs" / "x.log").read_bytes() == b"ab"


def test_faults_strike_at_the_nth_hit_only() -> None:
    faults.arm("files.write:2=error:EIO")
    faults.hit("files.write")
    with pytest.raises(OSError) as caught:
        faults.hit("files.write")
    assert caught.value.errno == errno.EIO
    faults.hit("files.write")
    with pytest.raises(ValueError, match="unknown fault point"):
        faults.arm("nope=kill")


@pytest.mark.parametrize("fault", ["files.fsync=error:ENOSPC", "files.rename=error:EIO", ""])
def test_a_log_is_cut_even_where_no_copy_can_be_made(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"a" * 500)
    assert not files.rotate_log(path, 500, 2)
    assert not files.rotate_log(tmp_path / "none.log", 500, 2)
    faults.arm(fault)
    assert files.rotate_log(path, 100, 2)
    faults.arm("")
    assert path.read_bytes() == b""
    kept = [] if fault else ["x.log.1"]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["x.log", *kept]
