"""The gradient noise scale of a running job of four processes against what its per-sample gradients say."""

from pathlib import Path

import pytest
from noise_training import ACCUMULATE, BATCH

from starprof.model import env
from starprof.spool.layout import Spool
from starprof.store.ingest import fold
from starprof.store.runfile import RunFile
from starprof.sync.noise_scale import NoiseScale, Squares

SCRIPT = Path(__file__).with_name("noise_training.py")
SETUP = {"steps": 500, "ask": [[15, "m-sync", {"m": 3}], [35, "asgd", {}]]}


def estimate_of(rows):
    scale = NoiseScale(newest=1e-3)
    for local, mean, share in rows:
        scale.add(Squares(local, mean, share))
    return scale.estimate()


def test_native_steps_and_rounds_tell_the_noise_that_per_sample_gradients_have(job, monkeypatch, tmp_path):
    monkeypatch.setenv(env.CONTROL_NOISE_EVERY, "2")
    running = job(SETUP, script=SCRIPT)
    told = running.wait()[0]
    noise = told["noise"] / (BATCH * ACCUMULATE)
    ratio = noise / told["signal"]
    file = tmp_path / "run.starprof"
    fold(Spool(running.spool), file, final=True)
    with RunFile.open_read_only(file) as run:
        rows = run.query("SELECT mode, gradients, local, mean, share, low, high FROM sync_noise ORDER BY version")
    for mode, gradients in (("native", 4), ("m-sync", 3), ("asgd", 2)):
        mine = [row[2:5] for row in rows if row[0] == mode]
        assert {row[1] for row in rows if row[0] == mode} == {gradients}
        assert len(mine) >= 5, f"hardly anything was seen in {mode}: {len(mine)}"
        found = estimate_of(mine)
        assert found.noise == pytest.approx(noise, rel=0.5)
        # Which updates are looked at is up to the scheduler: one interval in twenty misses, twice as wide a one none.
        assert found.low / 2 <= ratio <= found.high * 2, f"{mode}: {found}, and {ratio}"
