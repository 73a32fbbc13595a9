"""How the agent treats collectors that fail, block, or are missing."""

import itertools
import threading
import time

from starprof.agent.buffer import RowBuffer
from starprof.agent.sampler import Sampler
from starprof.collectors.base import NodeContext, Unavailable
from starprof.collectors.registry import Entry
from starprof.model.schema import BY_CODE, BY_NAME

SECOND_NS = 1_000_000_000


class Source:
    """A collector whose behaviour a test decides; each sample is one row of `irq_sample`."""

    dear = False
    slow = False

    def __init__(self, name="source"):
        self.name = name
        self.failure = None
        self.opened = self.closed = 0

    def open(self, context, rows):
        self.opened += 1
        if isinstance(self.failure, Unavailable):
            raise self.failure

    def sample(self, mono_ns, rows):
        if self.failure is not None:
            raise self.failure
        rows.add(BY_NAME["irq_sample"], (0, mono_ns, 0, 1, 2, 3))

    def close(self):
        self.closed += 1


class Ready(Entry):
    """An entry whose collector exists already."""

    def create(self):
        return self.factory


def sampler_of(*sources):
    rows = RowBuffer()
    return Sampler([Ready(source.name, source) for source in sources], NodeContext(node=4), rows), rows


def taken(rows):
    return {BY_CODE[code].name: [list(row) for row in content] for code, content in rows.take().items()}


def times(rows):
    return [row[1] for row in taken(rows).get("irq_sample", [])]


def test_a_source_that_is_not_there_is_recorded_and_the_others_run():
    missing, present = Source("missing"), Source()
    missing.failure = Unavailable("no such device")
    sampler, rows = sampler_of(missing, present)
    sampler.sample(1)

    found = taken(rows)
    assert found["unavailable"] == [[4, "missing", "no such device"]]
    assert len(found["irq_sample"]) == 1


def test_a_collector_that_is_not_installed_is_recorded():
    rows = RowBuffer()
    Sampler([Entry("ghost", "starprof.collectors.ghost:Ghost")], NodeContext(node=4), rows)

    assert taken(rows)["unavailable"][0][:2] == [4, "ghost"]


def test_a_source_that_fails_costs_only_its_own_rows_and_the_time_until_it_works_again_is_a_gap():
    broken, good = Source("broken"), Source("good")
    sampler, rows = sampler_of(broken, good)
    sampler.sample(0)
    broken.failure = ValueError("not a number")
    sampler.sample(SECOND_NS)
    broken.failure = None
    sampler.sample(2 * SECOND_NS)
    assert (broken.closed, broken.opened) == (1, 1)
    sampler.sample(12 * SECOND_NS)

    found = taken(rows)
    assert len(found["irq_sample"]) == 2 + 1 + 1 + 2
    assert found["gap"] == [["broken", 4, None, 0, 12 * SECOND_NS, None, "ValueError: not a number"]]


def test_a_source_that_never_comes_back_is_a_gap_without_an_end():
    broken = Source("broken")
    sampler, rows = sampler_of(broken)
    sampler.sample(5)
    broken.failure = OSError(19, "No such device")
    sampler.sample(SECOND_NS)
    sampler.close()

    assert taken(rows)["gap"] == [["broken", 4, None, 5, None, None, "OSError: [Errno 19] No such device"]]
    assert broken.closed == 1


def test_a_source_that_keeps_failing_is_tried_ever_more_seldom():
    broken = Source("broken")
    sampler, _ = sampler_of(broken)
    broken.failure = OSError(5, "Input/output error")
    for second in range(100):
        sampler.sample(second * SECOND_NS)

    assert broken.closed == 4  # at 0, 10, 30 and 70 s


def test_dear_sources_run_once_a_second_at_different_ticks():
    sources = [Source(f"dear{i}") for i in range(5)]
    for source in sources:
        source.dear = True
        source.sample = lambda mono_ns, rows, n=source.name[-1]: rows.add(
            BY_NAME["irq_sample"], (0, mono_ns, int(n), 0, 0, 0)
        )
    sampler, rows = sampler_of(*sources)
    for tick in range(41):
        sampler.sample(tick * SECOND_NS // 10)

    found = taken(rows)["irq_sample"]
    by_source = {n: [row[1] for row in found if row[2] == n] for n in range(5)}
    for ticks in by_source.values():
        assert {b - a for a, b in itertools.pairwise(ticks)} == {SECOND_NS}
    assert len({ticks[-1] % SECOND_NS for ticks in by_source.values()}) == 5


def test_a_source_that_blocks_does_not_delay_the_others():
    blocked, good = Source("blocked"), Source("good")
    blocked.slow = True
    go = threading.Event()

    def sample(mono_ns, rows):
        rows.add(BY_NAME["numa_sample"], (0, mono_ns, 0, 1, 2, 3, 4))
        go.wait(10)

    blocked.sample = sample
    sampler, rows = sampler_of(blocked, good)
    began = time.monotonic()
    for tick in range(10):
        sampler.sample(tick)
    assert time.monotonic() - began < 5
    time.sleep(0.2)
    sampler.fetch()
    go.set()
    sampler.close()

    found = taken(rows)
    assert len(found["irq_sample"]) == 10
    assert len(found["numa_sample"]) == 1
