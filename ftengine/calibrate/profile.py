"""What calibration finds, as data that is printed, cached and compared. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

PROFILE_VERSION = 1


@dataclass(frozen=True)
class Profile:
    """Measured rates of one machine. Units: bytes per second; seconds; expert rates by format.

    read_bytes_per_s is plain streaming by all threads, the ceiling of every expert kernel;
    disk_bytes_per_s is 0 where no file was given. A machine without a link has no link rates.
    """

    threads: int
    target: str
    read_bytes_per_s: float
    expert_bytes_per_s: dict[str, float]
    disk_bytes_per_s: float
    seconds: float
    version: int = PROFILE_VERSION

    def to_json(self) -> dict[str, Any]:
        """Plain values for one JSON object."""
        return asdict(self)
