"""What was read last is there when the disk is gone; nothing older is, and nothing is shared."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftman.last_read import KEPT, LastRead


def test_a_file_is_as_it_was_read_last_when_its_disk_is_gone(tmp_path: Path) -> None:
    mine, others = LastRead(), LastRead()
    paths = [tmp_path / str(number) for number in range(KEPT + 1)]
    for path in paths:
        path.write_bytes(b"old")
        mine.read_bytes(path)
    paths[-1].write_bytes(b"new")
    assert mine.read_bytes(paths[-1]) == b"new"
    for path in paths:
        path.unlink()
    assert [mine.read_bytes(path) for path in paths[1:]] == [b"old"] * (KEPT - 1) + [b"new"]
    with pytest.raises(OSError):
        mine.read_bytes(paths[0])
    with pytest.raises(OSError):
        others.read_bytes(paths[-1])
