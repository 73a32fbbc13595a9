"""Time stamps as tools write them, and whether they tell their zone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starprof.importers.logs.stamps import LOCAL_STAMPS, UTC_STAMPS, parse_stamp, since_1970_ns

T = 1_769_855_415


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026/01/31 10:30:15.123", T * 10**9 + 123_000_000),
        ("2026-01-31T10:30:15", T * 10**9),
        ("20260131 10:30:15", T * 10**9),
        ("20260131 103015", T * 10**9),
        ("2026-01-31 10:30:15,5", T * 10**9 + 500_000_000),
    ],
)
def test_dates_without_zone_are_local(text, ns):
    assert parse_stamp(text) == (ns, LOCAL_STAMPS)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-01-31T10:30:15Z", T * 10**9),
        ("2026-01-31T12:30:15+02:00", T * 10**9),
        ("2026-01-31T05:00:15-0530", T * 10**9),
        (str(T), T * 10**9),
        (f"{T}.25", T * 10**9 + 250_000_000),
        (str(T * 1000 + 7), T * 10**9 + 7_000_000),
        (str(T * 10**6), T * 10**9),
        (str(T * 10**9 + 1), T * 10**9 + 1),
    ],
)
def test_zones_and_numbers_since_1970_are_utc(text, ns):
    assert parse_stamp(text) == (ns, UTC_STAMPS)


@pytest.mark.parametrize(
    "text", ["", "10:30:15", "2026-13-31 10:30:15", "12", "9999-01-01 00:00:00", "1970-01-01 00:00:00", "9" * 19]
)
def test_the_rest_is_no_time_stamp(text):
    assert parse_stamp(text) is None


@given(st.text(max_size=40))
def test_any_text_is_a_64_bit_time_or_none(text):
    stamp = parse_stamp(text)
    assert stamp is None or 0 < stamp[0] < 2**63


@given(st.floats())
def test_any_number_of_seconds_is_a_64_bit_time_or_none(seconds):
    stamp = since_1970_ns(seconds)
    assert stamp is None or 0 < stamp < 2**63
