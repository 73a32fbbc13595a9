"""A rank whose network interface is slow is left out by modes that leave late ranks out: each is on its own host."""

import os
import shutil
import time
from pathlib import Path

import pytest

from starprof.demo.netlab import TOOLS, NetLab

SCRIPT = Path(__file__).with_name("until_told.py")
SLOW, LAST = 2, 20
RATE_MBIT = 20
WITHIN_S = 120.0

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, TOOLS)), reason="network namespaces need root and iproute2"
    ),
]


def until(job, met):
    """Wait until the newest rounds are so."""
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        rounds = [update["contributors"] for update in job.ask(do="history", last=LAST)["updates"]]
        if len(rounds) == LAST and met(rounds):
            return
        assert time.monotonic() < deadline_s, f"rounds are made of {rounds}:\n{job.text(0)}"
        time.sleep(0.1)


def extra_s(job):
    return job.ask(do="status")["ranks"][SLOW]["extra_transfer_s"]


def test_a_rank_with_a_slow_interface_is_left_out_until_it_is_as_fast_as_the_others_again(job, tmp_path):
    setup = {"stop": str(tmp_path / "stop"), "width": 400, "compute_s": 0.02, "batches": 200}
    with NetLab(4) as lab:
        running = job(setup, script=SCRIPT, lab=lab)
        assert running.ask(do="mode", mode="m-sync", options={"m": 3}, within_s=WITHIN_S)["ok"]
        until(running, lambda rounds: all(len(ranks) == 3 for ranks in rounds))

        lab.shape(SLOW, RATE_MBIT)
        until(running, lambda rounds: sum(SLOW in ranks for ranks in rounds) <= 1 and extra_s(running) > 0.05)
        before = running.ask(do="status")["version"]
        until(running, lambda _: running.ask(do="status")["version"] > before + 3 * LAST)  # the others go on

        lab.unshape(SLOW)
        until(running, lambda rounds: sum(SLOW in ranks for ranks in rounds) >= 3 and extra_s(running) == 0.0)

        Path(setup["stop"]).touch()
        told = running.wait(within_s=WITHIN_S)
    assert len({rank["digest"] for rank in told}) == 1
