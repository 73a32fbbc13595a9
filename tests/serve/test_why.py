"""Why a rank is late: the offline diagnosis says it, beside the watch, of what is folded in so far."""

import asyncio
import time

import pytest
from serve_parts import describe_ranks, own_times, spool_in, step_frame

from starprof.model import causes
from starprof.serve.jobwatch import JobWatch
from starprof.serve.why import Why
from starprof.spool.segment import SegmentWriter
from starprof.store.ingest import fold

PATIENCE_S = 60.0


@pytest.fixture
def watch(tmp_path):
    """Of four ranks, the last of which is confirmed to be late in its forward pass."""
    spool = spool_in(tmp_path)
    made = JobWatch(spool)
    writer = SegmentWriter(spool.segments, "n0")
    writer.write(describe_ranks(4))
    writer.write(
        [step_frame(rank, 0, own_times(400, seed=rank, slow_from=200 if rank == 3 else None)) for rank in range(4)]
    )
    made.poll(1.0)
    writer.close()
    yield made
    made.close()


async def asked(watch, now_s):
    why = Why()
    why.look(watch, now_s)
    deadline_s = time.monotonic() + PATIENCE_S
    while why._task is not None and not why._task.done() and time.monotonic() < deadline_s:
        await asyncio.sleep(0.05)
    await why.close()


def test_a_rank_that_is_late_for_certain_gets_its_cause_and_the_evidence(watch):
    fold(watch.spool, watch.spool.root.with_suffix(""), final=True)
    (before,) = watch.blames(1.0)
    assert (before.rank, before.status, before.cause) == (3, "confirmed", causes.UNKNOWN)
    asyncio.run(asked(watch, 1.0))
    (blame,) = watch.blames(1.0)
    assert blame.cause == causes.FORWARD_COMPUTE
    assert "rank 3" in blame.why.lower()


def test_nothing_is_asked_before_anything_is_folded_in(watch):
    asyncio.run(asked(watch, 1.0))
    assert watch.causes == {}
