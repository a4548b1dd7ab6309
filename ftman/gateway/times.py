"""Times as the wire wants them: RFC 3339 stamps and whole nanoseconds."""

from __future__ import annotations

from datetime import datetime, timezone

FOREVER_S = 9223372036.854775807
"""Go's longest duration: how Ollama stores "forever"."""


def utc_stamp(wall_s: float) -> str:
    """RFC 3339 in UTC with up to 9 fractional digits, trailing zeros dropped."""
    return _stamp(datetime.fromtimestamp(wall_s, timezone.utc)) + "Z"


def local_stamp(wall_s: float) -> str:
    """RFC 3339 with the local offset."""
    moment = datetime.fromtimestamp(wall_s, timezone.utc).astimezone()
    offset = moment.strftime("%z")
    zone = "Z" if offset in ("", "+0000") else f"{offset[:3]}:{offset[3:5]}"
    return _stamp(moment) + zone


def nanoseconds(seconds: float) -> int:
    """Whole nanoseconds."""
    return max(0, round(seconds * 1e9))


def _stamp(moment: datetime) -> str:
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{moment.microsecond:06d}".rstrip("0") if moment.microsecond else text
