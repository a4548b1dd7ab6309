"""Sizes, counts and times as Ollama words them."""

from __future__ import annotations

import pytest

from ftman.cli.units import (
    clock_span,
    go_duration,
    human_bytes,
    human_duration,
    human_number,
    human_time,
    until,
    wall_seconds,
)

DAY = 86400


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (1500, "1.5 KB"),
        (9_990, "10.0 KB"),
        (986_000_000, "986 MB"),
        (2_019_393_189, "2.0 GB"),
        (2_000_000_000, "2 GB"),
        (47_900_000_000, "47 GB"),
        (1_500_000_000_000, "1.5 TB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (8_000_000_000, "8B"),
        (7_600_000_000, "7.6B"),
        (137_000_000, "137M"),
        (22_570_000, "22.57M"),
        (500_000, "500K"),
        (12, "12"),
    ],
)
def test_numbers(count: int, text: str) -> None:
    assert human_number(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "Less than a second"),
        (1, "1 second"),
        (59, "59 seconds"),
        (60, "About a minute"),
        (119, "About a minute"),
        (120, "2 minutes"),
        (3600, "About an hour"),
        (5400, "2 hours"),
        (47 * 3600, "47 hours"),
        (3 * DAY, "3 days"),
        (14 * DAY, "2 weeks"),
        (60 * DAY, "2 months"),
        (729 * DAY, "24 months"),
        (730 * DAY, "2 years"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


def test_times_are_relative_to_now() -> None:
    now = wall_seconds("2026-08-04T13:04:05Z")
    assert now is not None
    assert human_time("2026-08-01T15:04:05.123456789+02:00", now) == "3 days ago"
    assert until("2026-08-04T13:08:59.5Z", now) == "4 minutes from now"
    assert until("2318-11-11T00:00:00Z", now) == "Forever"
    assert until("2026-08-04T13:00:00Z", now) == "Stopping..."
    assert until("0001-01-01T00:00:00Z", now) == "Never"
    assert human_time("", now) == "Never"


def test_offsets_and_fractions_are_read() -> None:
    assert wall_seconds("1970-01-01T01:00:00.5+01:00") == 0.5
    assert wall_seconds("1969-12-31T23:59:59Z") == -1
    assert wall_seconds("2026-13-01T00:00:00Z") is None


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (999, "999ns"),
        (1500, "1.5µs"),
        (113_000_000, "113ms"),
        (4_860_000_000, "4.86s"),
        (123_500_000_000, "2m3.5s"),
        (3_723_000_000_000, "1h2m3s"),
    ],
)
def test_go_durations(nanoseconds: int, text: str) -> None:
    assert go_duration(nanoseconds) == text


def test_clock_spans() -> None:
    assert [clock_span(s) for s in (7, 418, 3723)] == ["0:07", "6:58", "1:02:03"]
