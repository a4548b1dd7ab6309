"""Numbers and times for people, spelled as Ollama spells them; pure functions."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

ZERO_TIME_YEAR = 1
_FOREVER_S = 20 * 365 * 86400.0
_RFC3339 = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:\d{2})(?:\.(\d+))?([Zz]|[+-]\d{2}:\d{2})"
)


def human_bytes(count: float) -> str:
    """2.0 GB style: decimal units, one decimal below ten, whole above."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if count >= unit:
            value = count / unit
            if value >= 10 or value == int(value):
                return f"{int(value)} {name}"
            return f"{value:.1f} {name}"
    return f"{int(count)} B"


def human_number(count: int) -> str:
    """Parameter counts: 8B, 7.6B, 137M, 22.57M, 500K."""
    for unit, name, places in ((10**9, "B", 1), (10**6, "M", 2)):
        if count >= unit:
            value = count / unit
            return f"{value:.0f}{name}" if value == int(value) else f"{value:.{places}f}{name}"
    return f"{count / 1000:.0f}K" if count >= 1000 else str(count)


def human_duration(seconds: float) -> str:
    """The words for a span of time: "About a minute", "3 days"."""
    whole, minutes = int(seconds), int(seconds / 60)
    hours = int(seconds / 3600 + 0.5)
    if whole < 1:
        return "Less than a second"
    if whole < 60:
        return "1 second" if whole == 1 else f"{whole} seconds"
    if minutes < 60:
        return "About a minute" if minutes == 1 else f"{minutes} minutes"
    if hours < 48:
        return "About an hour" if hours == 1 else f"{hours} hours"
    for limit, size, name in ((14, 24, "days"), (60, 24 * 7, "weeks"), (730, 24 * 30, "months")):
        if hours < limit * 24:
            return f"{hours // size} {name}"
    return f"{int(seconds / 3600 / 24 / 365)} years"


def human_time(stamp: str, now_wall_s: float) -> str:
    """An RFC 3339 time relative to now: "3 days ago", "4 minutes from now", "Never"."""
    moment = wall_seconds(stamp)
    if moment is None:
        return "Never"
    gap = now_wall_s - moment
    if gap >= 0:
        return f"{human_duration(gap)} ago"
    return f"{human_duration(-gap)} from now"


def until(stamp: str, now_wall_s: float) -> str:
    """The UNTIL column of ps."""
    moment = wall_seconds(stamp)
    if moment is None:
        return "Never"
    if moment - now_wall_s > _FOREVER_S:
        return "Forever"
    if moment < now_wall_s:
        return "Stopping..."
    return human_time(stamp, now_wall_s)


def wall_seconds(stamp: str) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; None for the zero time and for anything else."""
    match = _RFC3339.fullmatch(stamp)
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    offset = timedelta(0)
    if zone not in "Zz":
        sign = -1 if zone[0] == "-" else 1
        offset = sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=timezone(offset))
    except ValueError:
        return None
    if moment.year <= ZERO_TIME_YEAR:
        return None
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (moment - epoch).total_seconds() + float(f"0.{fraction or 0}")


def clock_span(seconds: float) -> str:
    """An ETA: 0:07, 6:58, 1:02:03."""
    whole = max(0, int(seconds + 0.5))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def go_duration(nanoseconds: int) -> str:
    """A duration as Go prints it: 4.86s, 113.2ms, 2m3.5s."""
    if nanoseconds < 10**9:
        for unit, name in ((10**6, "ms"), (10**3, "µs")):
            if nanoseconds >= unit:
                return f"{nanoseconds / unit:.9g}{name}"
        return f"{nanoseconds}ns" if nanoseconds else "0s"
    minutes, rest = divmod(nanoseconds, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{head}{rest / 10**9:.11g}s"
