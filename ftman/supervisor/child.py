"""One operating system process: spawned or attached to, watched, signalled, and its exit named.

Knows nothing of engines. Death is noticed by the kernel telling us (pidfd), not by polling, for
our own children and for adopted processes alike; without pidfd a thread waits, or a timer looks.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from ftman.clock import SYSTEM
from ftman.supervisor.identity import Identity, identity_of

log = logging.getLogger(__name__)

POSIX = os.name == "posix"
_PR_SET_PDEATHSIG = 1
_LOOK_EVERY_S = 0.25


class Child:
    """A running process. Use it from one event loop; `exited` is set within moments of its end."""

    def __init__(self, identity: Identity, popen: subprocess.Popen[bytes] | None):
        self.identity = identity
        self.pid = identity.pid
        self.exited = asyncio.Event()
        self.exit_code: int | None = None
        self._popen = popen
        self._pidfd = -1
        self._task: asyncio.Task[None] | None = None
        self._watch()

    @staticmethod
    def spawn(
        argv: list[str],
        environ: Mapping[str, str],
        stderr_fd: int,
        *,
        dies_with_us: bool,
        waits: bool = False,
    ) -> Child:
        """Start a process in a session of its own, stdout piped.   Raises: OSError.

        waits: it has a stdin, by which it is told what to do.
        """
        popen = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr_fd,
            env=dict(environ),
            start_new_session=POSIX,
            preexec_fn=_death_signal_setter() if dies_with_us else None,
        )
        found = identity_of(popen.pid)
        # Right after the exec the argv may not be readable yet; what was asked for is the truth.
        start = found.start if found is not None else ""
        return Child(Identity(popen.pid, start, tuple(argv)), popen)

    @staticmethod
    def attach(identity: Identity) -> Child | None:
        """Watch a process that is not our child; None when it is gone meanwhile."""
        child = Child(identity, None)
        if identity_of(identity.pid) != identity:  # checked after the watch holds the pid
            child.close()
            return None
        return child

    @property
    def stdout_fd(self) -> int | None:
        """The read end of its stdout; None for an attached process."""
        pipe = self._popen.stdout if self._popen is not None else None
        return None if pipe is None else pipe.fileno()

    def tell(self, line: bytes) -> None:
        """Write to the stdin of a process that waits, and close it.   Raises: OSError: it died."""
        assert self._popen is not None
        assert self._popen.stdin is not None
        with self._popen.stdin as stdin:
            stdin.write(line)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM, to the process only: it drains and ends its own helpers)."""
        if self._alive():
            log.debug("SIGTERM to process %s", self.pid)
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it and its process group at once."""
        if self._alive():
            log.debug("killing process group %s", self.pid)
            self._kill_group()

    def close(self) -> None:
        """Stop watching. The process is left as it is."""
        if self._task is not None:
            self._task.cancel()
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        for pipe in (self._popen.stdin, self._popen.stdout) if self._popen is not None else ():
            if pipe is not None:
                with suppress(OSError):  # a line that a dead process never took
                    pipe.close()

    def describe_exit(self, out_of_memory: bool | None = None) -> str:
        """How it ended, in words. out_of_memory: whether the system ended any process for that."""
        code = self.exit_code
        if code is None:
            return "ended (started by an earlier manager, so its exit code is unknown)"
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        if name == "SIGKILL":
            why = {
                None: "often the system running out of memory",
                True: "the system ran out of memory and ended it",
                False: "not by the kernel for want of memory: by a memory watchdog, or somebody",
            }
            return f"was killed by SIGKILL ({why[out_of_memory]})"
        return f"was ended by {name}"

    def _alive(self) -> bool:
        if self.exited.is_set():
            return False
        # An own child keeps its pid until it is reaped here; an adopted one must prove itself.
        return self._popen is not None or identity_of(self.pid) == self.identity

    def _kill_group(self) -> None:
        if not POSIX:
            if self._popen is not None:
                self._popen.kill()
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _watch(self) -> None:
        if hasattr(os, "pidfd_open"):
            try:
                self._pidfd = os.pidfd_open(self.pid)
            except ProcessLookupError:
                self._pidfd = -1
            except OSError as error:
                log.warning("no pidfd for process %s (%s); looking instead", self.pid, error)
            else:
                asyncio.get_running_loop().add_reader(self._pidfd, self._ended)
                return
        self._task = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while True:
            if self._popen is not None:
                # WNOWAIT is not everywhere: reaping here is fine, the group is killed before.
                if self._popen.poll() is not None:
                    break
            elif identity_of(self.pid) != self.identity:
                break
            await SYSTEM.sleep(_LOOK_EVERY_S)
        self._ended()

    def _ended(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
        if self._popen is not None:
            if self._pidfd >= 0:
                self._kill_group()  # helpers it left behind; the pid is still ours, not reaped
            self.exit_code = self._popen.wait()
        self.exited.set()


def _death_signal_setter() -> Callable[[], None] | None:
    """A function for the new process: die by SIGKILL when the manager dies (Linux only)."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    prctl, parent = libc.prctl, os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask
