"""Which signals end the manager in order."""

from __future__ import annotations

import signal

import pytest

from ftman.gateway.serve_process import stop_signals

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")


def test_a_closed_terminal_ends_it_in_order() -> None:
    assert stop_signals() == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def test_under_nohup_a_closed_terminal_ends_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert stop_signals() == [signal.SIGINT, signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before)
