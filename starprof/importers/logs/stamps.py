"""Time stamps of logs and metrics: nanoseconds since 1970, and whether their zone is told."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

UTC_STAMPS, LOCAL_STAMPS, COUNTED = "utc", "local", "counted"
"""What a file's times are: wall clock with a known zone; wall clock without one, read as if it were UTC; made up."""

EARLIEST_S, LATEST_S = 946_684_800, 4_102_444_800
"""2000 and 2100: a time outside is none of a training job."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(
    r"(\d{4})[-/]?(\d{2})[-/]?(\d{2})[T _]+(\d{2}):?(\d{2}):?(\d{2})(?:[.,](\d{1,9}))?\s*(Z|[+-]\d{2}:?\d{2})?$"
)
_NUMBER = re.compile(r"\d{9,19}(?:\.\d{1,9})?$")


def parse_stamp(text: str) -> tuple[int, str] | None:
    """Nanoseconds since 1970, and UTC_STAMPS or LOCAL_STAMPS; None when it is no time stamp.

    Takes dates with a time of day (`2026/01/31 10:30:15.123`, ISO 8601, `20260131 103015`), and numbers since 1970 in
    s, ms, us or ns, told apart by their size.
    """
    text = text.strip().strip('"')
    if _NUMBER.match(text):
        return _of_number(text)
    found = _DATE.match(text)
    return None if found is None else _of_date(*found.groups())


def since_1970_ns(seconds: float) -> int | None:
    """Nanoseconds of a number of seconds, to the microsecond; None when it is no plausible wall clock."""
    return round(seconds * 1e6) * 1000 if EARLIEST_S <= seconds < LATEST_S else None


def _of_number(text: str) -> tuple[int, str] | None:
    whole, _, fraction = text.partition(".")
    for per_second in (1, 1_000, 1_000_000, 1_000_000_000):
        if EARLIEST_S * per_second <= int(whole) < LATEST_S * per_second:
            scale = 1_000_000_000 // per_second
            return int(whole) * scale + int(
                int(fraction.ljust(9, "0")) * scale // 1_000_000_000 if fraction else 0
            ), UTC_STAMPS
    return None


def _of_date(
    year: str, month: str, day: str, hour: str, minute: str, second: str, fraction: str | None, zone: str | None
) -> tuple[int, str] | None:
    try:
        moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    except ValueError:
        return None
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    if not EARLIEST_S <= seconds < LATEST_S:
        return None
    ns = seconds * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))
    if not zone:
        return ns, LOCAL_STAMPS
    if zone == "Z":
        return ns, UTC_STAMPS
    offset_s = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
    return ns + (offset_s if zone[0] == "-" else -offset_s) * 1_000_000_000, UTC_STAMPS
