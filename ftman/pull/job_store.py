"""Pull jobs in the state database: for `ft jobs` and after a restart. Losing it loses no model."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from ftman import files
from ftman.errors import ConflictError, FtmanError

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
KEEP_ROWS = 200
_OF_THE_SYSTEM = (
    "attempt to write a readonly database",
    "database is locked",
    "database or disk is full",
    "disk I/O error",
    "out of memory",
    "unable to open database file",
)
"""What SQLite says where nothing is wrong with what is in the file. Source: sqlite3_errstr."""
_TABLES = """
CREATE TABLE IF NOT EXISTS parts (part TEXT PRIMARY KEY, version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (
  id TEXT PRIMARY KEY, name TEXT NOT NULL, state TEXT NOT NULL, phase TEXT NOT NULL,
  completed INTEGER NOT NULL, total INTEGER NOT NULL, error TEXT NOT NULL,
  started_wall_s REAL NOT NULL, updated_wall_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS wishes (id TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


@dataclass(frozen=True)
class JobView:
    """One pull as others see it. state: running, done, failed, cancelled, paused, interrupted."""

    id: str
    name: str
    state: str
    phase: str = ""
    completed: int = 0
    total: int = 0
    error: str = ""
    started_wall_s: float = 0.0
    updated_wall_s: float = 0.0


@dataclass(frozen=True)
class PullWish:
    """What a pull was asked for, so that it can be taken up."""

    name: str
    insecure: bool = False
    keep_source: bool = False


class JobStore:
    """The `jobs` table. A damaged database is put aside and begun anew; a newer one is refused."""

    def __init__(self, folder: Path):
        files.make_dir(folder)
        self.path = folder / "state.db"
        try:
            self._db = self._open()
        except sqlite3.DatabaseError as error:
            if str(error) in _OF_THE_SYSTEM:
                raise FtmanError(
                    f"{self.path} cannot be opened: {error}",
                    hint="See whether the disk is full, or may not be written: ft doctor",
                    code="store_io",
                ) from None
            log.warning("%s cannot be read (%s); it is begun anew", self.path, error)
            self._put_aside()
            self._db = self._open()

    def save(self, job: JobView) -> None:
        """Insert or replace one row; trouble with the database is logged, never raised."""
        values = (
            job.id,
            job.name,
            job.state,
            job.phase,
            job.completed,
            job.total,
            job.error,
            job.started_wall_s,
            job.updated_wall_s,
        )
        self._write("INSERT OR REPLACE INTO jobs VALUES (?,?,?,?,?,?,?,?,?)", values)

    def save_wish(self, job_id: str, wish: PullWish) -> None:
        """Remember what a job was asked for."""
        values = (job_id, json.dumps(asdict(wish)))
        self._write("INSERT OR REPLACE INTO wishes VALUES (?,?)", values)

    def wish(self, job_id: str) -> PullWish | None:
        """What a job was asked for; None for jobs that are no pulls, and for unknown ones."""
        try:
            found = self._db.execute("SELECT value FROM wishes WHERE id = ?", (job_id,)).fetchone()
            return PullWish(**json.loads(found[0])) if found else None
        except (sqlite3.Error, ValueError, TypeError) as error:
            log.warning("what job %s was asked for cannot be read: %s", job_id, error)
            return None

    def rows(self) -> list[JobView]:
        """All rows, newest first."""
        try:
            found = self._db.execute("SELECT * FROM jobs ORDER BY updated_wall_s DESC").fetchall()
        except sqlite3.Error as error:
            log.warning("jobs cannot be listed: %s", error)
            return []
        return [JobView(*row) for row in found]

    def holds(self, job_id: str) -> bool:
        """Whether a job is remembered."""
        return any(row.id == job_id for row in self.rows())

    def interrupt_running(self) -> None:
        """At start: whatever still says "running" was cut off with its manager."""
        self._write("UPDATE jobs SET state = 'interrupted' WHERE state = 'running'", ())

    def forget(self, before_wall_s: float) -> None:
        """Drop what ended before then, but for the paused, and all but the newest KEEP_ROWS."""
        self._write(
            "DELETE FROM jobs WHERE state NOT IN ('running', 'paused') AND updated_wall_s < ?",
            (before_wall_s,),
        )
        self._write(
            "DELETE FROM jobs WHERE state != 'running' AND id NOT IN"
            " (SELECT id FROM jobs ORDER BY updated_wall_s DESC LIMIT ?)",
            (KEEP_ROWS,),
        )
        self._write("DELETE FROM wishes WHERE id NOT IN (SELECT id FROM jobs)", ())

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=2.0, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            database.executescript(_TABLES)
            self._check_version(database)
        except BaseException:
            database.close()
            raise
        return database

    def _check_version(self, database: sqlite3.Connection) -> None:
        with closing(database.execute("SELECT version FROM parts WHERE part = 'jobs'")) as cursor:
            row = cursor.fetchone()
        if row is None:
            with database:
                database.execute("INSERT INTO parts VALUES ('jobs', ?)", (SCHEMA_VERSION,))
        elif row[0] > SCHEMA_VERSION:
            raise ConflictError(
                f"{self.path} was written by a newer ft (jobs table version {row[0]}, "
                f"known here {SCHEMA_VERSION})",
                hint="Use the newer ft, or delete that file: no model is lost with it.",
                code="newer_state",
            )

    def _put_aside(self) -> None:
        files.rename(self.path, self.path.with_name("state.db.damaged"))
        for suffix in ("-wal", "-shm"):
            files.unlink(self.path.with_name(self.path.name + suffix))

    def _write(self, sql: str, values: tuple[object, ...]) -> None:
        try:
            with self._db:
                self._db.execute(sql, values)
        except sqlite3.Error as error:
            log.warning("jobs are not recorded: %s", error)
