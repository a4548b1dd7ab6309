"""The one file layer: the only module that opens for writing, fsyncs, renames or unlinks.

Standard library only; the engine's converter uses it too. Each step passes a named fault point, so
that tests can fail the Nth call or kill the process there. Visible writes are always: temporary
file, fsync, rename, fsync of the folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from ftman import faults

if os.name == "posix":
    import fcntl

CHUNK_BYTES = 1 << 20
DIR_MODE = 0o700
FILE_MODE = 0o600


class LockedError(OSError):
    """Another live process holds the lock; the text names its pid."""


class Writer:
    """A file being written at any offset; nothing is durable before `sync`.

    Offsets and lengths in bytes. Use as a context manager; leaving it closes without syncing.
    """

    def __init__(self, path: Path, *, truncate: bool = False):
        faults.hit("files.open")
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        if truncate:
            flags |= os.O_TRUNC
        self.path = path
        self._fd = os.open(path, flags, FILE_MODE)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> int:
        """Write all of `data` at `offset`; returns its length. Raises: OSError (disk full, ...)."""
        view = memoryview(data).cast("B")
        total = len(view)
        while view:
            faults.hit("files.write")
            if hasattr(os, "pwrite"):
                done = os.pwrite(self._fd, view, offset)
            else:
                os.lseek(self._fd, offset, os.SEEK_SET)
                done = os.write(self._fd, view)
            view = view[done:]
            offset += done
        return total

    def append(self, data: bytes) -> None:
        """Write at the present end."""
        self.write_at(self.size(), data)

    def size(self) -> int:
        """Present length in bytes."""
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        """Set the length; growing leaves a hole."""
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """Make data and length durable."""
        faults.hit("files.fsync")
        os.fsync(self._fd)

    def fileno(self) -> int:
        """The raw descriptor, for mmap and direct I/O."""
        return self._fd

    def close(self) -> None:
        """Close; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Lock:
    """An advisory whole-file lock that dies with its process.

    The file holds the owner's pid as text, for messages. Raises: LockedError when held elsewhere.
    """

    def __init__(self, path: Path):
        make_dir(path.parent)
        self._writer = Writer(path)
        self.path = path
        try:
            if os.name == "posix":
                fcntl.flock(self._writer.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = self._owner()
            self._writer.close()
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise LockedError(errno.EAGAIN, f"held by process {owner}", str(path)) from None
            raise
        try:
            self._writer.truncate(0)
            self._writer.write_at(0, f"{os.getpid()}\n".encode())
        except OSError:
            self._writer.close()
            raise

    def _owner(self) -> str:
        return os.pread(self._writer.fileno(), 32, 0).decode(errors="replace").strip() or "unknown"

    def release(self) -> None:
        """Give the lock up. The file stays: deleting a lock file races with its next owner."""
        self._writer.close()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def make_dir(path: Path) -> Path:
    """Create a private folder and its parents, durably; an existing one is left as it is."""
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    # One by one: parents made by mkdir itself would get the umask's mode, not ours.
    for folder in reversed(missing):
        if folder.is_dir():
            continue
        folder.mkdir(mode=DIR_MODE, exist_ok=True)
        # A file in it is no safer than the name of the folder is.
        with contextlib.suppress(PermissionError):  # a parent that may be entered, not read
            sync_dir(folder.parent)
    return path


def sync_dir(path: Path) -> None:
    """Make the names in a folder durable (a no-op where folders cannot be opened)."""
    if os.name != "posix":
        return
    faults.hit("files.fsync")
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A temporary name next to `path`; whatever still has it at the end is removed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108 - an error being raised matters more


def _write_whole(path: Path, data: bytes) -> None:
    with Writer(path, truncate=True) as writer:
        writer.write_at(0, data)
        writer.sync()


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data` so that a crash leaves either the old or the new content."""
    make_dir(path.parent)
    with _beside(path) as temporary:
        _write_whole(temporary, data)
        rename(temporary, path)


def rename(source: Path, target: Path, *, durable: bool = True) -> None:
    """Rename, by default durably; an existing target file is replaced."""
    faults.hit("files.rename")
    os.replace(source, target)  # noqa: PTH105
    if not durable:
        return
    sync_dir(target.parent)
    if source.parent != target.parent:
        sync_dir(source.parent)


def create_new(path: Path, data: bytes) -> None:
    """Create `path` with all of `data`, unless it exists; of several at once one succeeds.

    Raises: FileExistsError.
    """
    make_dir(path.parent)
    with _beside(path) as temporary:
        _write_whole(temporary, data)
        faults.hit("files.rename")
        # Unlike a lock, the second name is refused on every file system that has such names.
        os.link(temporary, path)
    sync_dir(path.parent)


def copy_file(source: Path, target: Path, on_bytes: Callable[[int], None] | None = None) -> int:
    """Copy bytes durably through a temporary name; returns their number."""
    offset = 0
    with _beside(target) as temporary:
        with open_read(source) as reader, Writer(temporary, truncate=True) as writer:
            while chunk := reader.read(CHUNK_BYTES):
                offset += writer.write_at(offset, chunk)
                if on_bytes is not None:
                    on_bytes(len(chunk))
            writer.sync()
        rename(temporary, target)
    return offset


def link_or_copy(source: Path, target: Path) -> bool:
    """A second name for a file, or a copy where the disk gives none; True for a second name."""
    faults.hit("files.rename")
    try:
        os.link(source, target)
    except OSError:
        copy_file(source, target)
        return False
    sync_dir(target.parent)
    return True


def unlink(path: Path, *, missing_ok: bool = True) -> None:
    """Remove one file."""
    faults.hit("files.unlink")
    path.unlink(missing_ok=missing_ok)


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it; a missing one is fine."""
    faults.hit("files.unlink")
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def remove_empty_parents(path: Path, stop: Path) -> None:
    """Remove `path` and its parents below `stop` as long as they are empty folders."""
    while path != stop and stop in path.parents:
        try:
            path.rmdir()
        except OSError:
            return
        path = path.parent


def open_read(path: Path) -> IO[bytes]:
    """Open for reading bytes."""
    return path.open("rb")


def open_log(path: Path) -> IO[bytes]:
    """Open for appending, unbuffered; for the output of child processes."""
    make_dir(path.parent)
    faults.hit("files.open")
    return path.open("ab", buffering=0)


def rotate_log(path: Path, limit_bytes: int, kept: int) -> bool:
    """Keep `kept` older logs once a log is too long. The live one is copied, then cut.

    Its writer holds it open and may be another process, so it cannot be renamed away; lines written
    between copy and cut are lost. So is all of it where the disk has no room for the copy: a log
    that grows for ever would take the last of that room. Returns whether it was cut.
    Raises: OSError when it cannot even be cut.
    """
    try:
        if path.stat().st_size <= limit_bytes:
            return False
    except OSError:
        return False

    def numbered(number: int) -> Path:
        return path.with_name(f"{path.name}.{number}")

    with contextlib.suppress(OSError):
        for number in range(kept - 1, 0, -1):
            if numbered(number).exists():
                rename(numbered(number), numbered(number + 1))
        copy_file(path, numbered(1))
    with Writer(path) as writer:
        writer.truncate(0)
    return True


def read_bytes(path: Path, *, limit: int = 64 << 20) -> bytes:
    """Read a small file whole. Raises: OSError(EFBIG) above `limit` bytes."""
    with open_read(path) as reader:
        data = reader.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return data


def sha256_file(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Hex SHA-256 of a file; `on_bytes` is told how many bytes were read each time."""
    digest = hashlib.sha256()
    with open_read(path) as reader:
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
            if on_bytes is not None:
                on_bytes(len(chunk))
    return digest.hexdigest()


def free_bytes(path: Path) -> int:
    """Bytes an ordinary user may still write on the disk that holds (or will hold) `path`."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def tree_bytes(path: Path) -> int:
    """Sum of the file sizes below a folder; 0 when missing."""
    return sum(item.stat().st_size for item in walk(path))


def walk(path: Path) -> Iterator[Path]:
    """All regular files below a folder, sorted; symbolic links are not followed."""
    if not path.is_dir():
        return
    for item in sorted(path.rglob("*")):
        if item.is_file() and not item.is_symlink():
            yield item
