from device_lab import SECOND_NS, Recorded
from hypothesis import given
from hypothesis import strategies as st

from starprof.collectors.netlink import attributes
from starprof.collectors.notes import Notes, Pace, stable_id


class CpuClock:
    """CPU time that only passes when told."""

    def __init__(self):
        self.ns = 0

    def __call__(self):
        return self.ns


def read_dates(pace, clock, cost_ns, ticks):
    """Seconds at which a read of the given cost happened, when it is asked for every second."""
    dates = []
    for second in range(ticks):
        if pace.due(second * SECOND_NS):
            clock.ns += cost_ns
            pace.done(second * SECOND_NS)
            dates.append(second)
    return dates


def test_what_is_cheap_is_read_at_every_interval():
    clock = CpuClock()
    assert read_dates(Pace(SECOND_NS, 0.002, clock), clock, 1_000_000, 5) == [0, 1, 2, 3, 4]


def test_what_is_dear_is_read_more_seldom_so_that_it_keeps_its_share():
    clock = CpuClock()
    dates = read_dates(Pace(SECOND_NS, 0.002, clock), clock, 10_000_000, 16)
    assert dates == [0, 5, 10, 15], "10 ms every 5 s are 0.2 % of a core"


def test_a_tick_that_comes_a_little_early_is_not_lost():
    pace = Pace(SECOND_NS, 0.5, CpuClock())
    assert pace.due(0)
    pace.done(0)
    assert pace.due(SECOND_NS - 20_000_000)
    assert not Pace.due(pace, SECOND_NS // 2)


def test_a_reason_is_said_once_per_field():
    notes, rows = Notes("gpu", 1), Recorded()
    for _ in range(3):
        notes.unavailable(rows, "temperature_c", "not supported")
    notes.unavailable(rows, "power_w", "not supported")
    assert [r["source"] for r in rows["unavailable"]] == ["gpu.temperature_c", "gpu.power_w"]


def test_an_id_depends_on_each_fact_and_fits_a_float():
    ids = {stable_id("nic", name, index) for name in ("eth0", "eth1", "eth01") for index in (1, 2, 11)}
    assert len(ids) == 9
    assert all(int(float(i)) == i for i in ids)
    assert stable_id("nic", "eth0", 1) == stable_id("nic", "eth0", 1)


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_apart_without_reading_past_their_end(data):
    parts = list(attributes(memoryview(data)))
    assert sum(len(content) for _, content in parts) <= len(data)
