"""Runs too long for memory: judged block by block, with the answer that the whole matrix would give."""

from dataclasses import replace

import numpy as np
import pytest
from live import slowed
from verdicts import blamed

from starprof.analysis import diagnose
from starprof.analysis.long.matrix import MatrixSource
from starprof.analysis.long.run import diagnose_long, judged_scan
from starprof.analysis.long.scan import Budget, scan_run
from starprof.analysis.long.slowdown import counted, quantile
from starprof.analysis.long.work import centre_of, reference_of
from starprof.analysis.own_time import own_time
from starprof.analysis.peers import peer_centre
from starprof.analysis.settings import DEFAULT
from starprof.analysis.synthetic import SyntheticRun
from starprof.model.rundata import Steps
from starprof.store.query import open_steps
from starprof.store.save import save_run

STEPS = 4_096
SMALL = Budget(block_cells=2_048, raw_cells=2_048, kept_cells=2_048, least_columns=128)
"""256 steps and 256 windows at a time for eight ranks: windows of 16 steps."""


class Counting(MatrixSource):
    """Notes how many steps were read at once."""

    def __init__(self, run):
        super().__init__(run)
        self.sizes = []

    def blocks(self, first, end, size, columns):
        for block in super().blocks(first, end, size, columns):
            self.sizes.append(len(block.steps))
            yield block

    def raw(self, first, end):
        self.sizes.append(end - first)
        return super().raw(first, end)


def run(*faults, **recipe):
    return SyntheticRun(**{"ranks": 8, "steps": STEPS, "counters": False, "faults": faults, **recipe})


def long_verdict(made):
    return diagnose_long(MatrixSource(made.data()), budget=SMALL).verdict


@pytest.mark.parametrize("factor", [1.06, 1.5])
def test_a_slow_rank_is_found_with_its_onset_to_the_step_that_the_whole_matrix_gives(factor):
    made = run(*slowed(3, factor, 1_701, None))
    long, whole = long_verdict(made), diagnose(made.data())
    assert (blamed(long), long.verdict) == ({3}, "straggler")
    assert abs(long.findings[0].onset_step - whole.findings[0].onset_step) <= 3
    assert f"since step {long.findings[0].onset_step}" in long.findings[0].evidence[0]


def test_cost_and_slowdown_are_those_of_the_whole_run():
    made = run(*slowed(3, 1.3, 1_000, None))
    verdict = long_verdict(made)
    assert verdict.cost.seconds == pytest.approx(made.cost_seconds(), rel=0.2)
    assert verdict.cost.share == pytest.approx(made.cost_seconds() / made.seconds(), rel=0.2)


def test_slowness_shorter_than_the_windows_is_found_in_the_raw_steps():
    verdict = long_verdict(run(*slowed(5, 1.5, 3_000, 3_030)))
    (finding,) = [f for f in verdict.findings if f.ranks]
    assert (finding.ranks, finding.kind) == ((5,), "transient")
    assert abs(finding.onset_step - 3_000) <= 1
    assert abs(finding.end_step - 3_029) <= 1


def test_short_and_lasting_slowness_are_told_apart():
    verdict = long_verdict(run(*slowed(5, 1.5, 3_000, 3_030), *slowed(3, 1.2, 1_000, None)))
    assert blamed(verdict) == {3, 5}
    assert len([f for f in verdict.findings if 3 in f.ranks]) == 1


def test_slow_from_the_first_step_on_starts_there():
    (finding,) = long_verdict(run(*slowed(2, 1.2, 0, None))).findings
    assert (finding.ranks, finding.kind) == ((2,), "chronic")
    assert finding.onset_step <= DEFAULT.warm_up_steps


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_run_is_not_accused(seed):
    assert long_verdict(run(seed=seed, cv=0.1, ar1=0.5, spread=0.02)).verdict == "none"


def test_never_more_than_a_block_is_read_at_once():
    source = Counting(run(*slowed(3, 1.5, 1_701, None), *slowed(5, 1.5, 3_000, 3_030)).data())
    diagnose_long(source, budget=SMALL)
    assert max(source.sizes) <= SMALL.block_steps(8)


def test_what_is_kept_does_not_grow_with_the_run():
    scan = scan_run(MatrixSource(run().data()), budget=SMALL)
    short = scan_run(MatrixSource(run(steps=STEPS // 4).data()), budget=SMALL)
    assert len(scan.windowed.steps.steps) <= SMALL.windows(8)
    assert scan.width == 4 * short.width


def test_windows_hold_the_mean_of_their_steps():
    made = run(cv=0.1)
    scan = scan_run(MatrixSource(made.data()), budget=SMALL)
    kept, raw = scan.windowed.steps, made.data().steps
    first = DEFAULT.warm_up_steps + 5 * scan.width
    assert kept.steps[5] == first
    assert np.allclose(kept["forward_us"][:, 5], raw["forward_us"][:, first : first + scan.width].mean(axis=1))
    assert "gpu_forward_us" not in kept.columns


def test_slowdown_centre_and_last_arrivals_are_those_of_the_whole_matrix():
    made = run(*slowed(3, 1.2, 0, None), cv=0.05)
    scan = scan_run(MatrixSource(made.data()), budget=SMALL)
    own = own_time(made.data(), DEFAULT)
    ratio = np.median(own.work / peer_centre(own.work, own.groups), axis=1)
    assert np.allclose(scan.slowdown(), ratio, rtol=0.005)
    last = np.bincount(np.argmax(own.cycle, axis=0), minlength=8) / own.shape[1]
    assert np.allclose(scan.last_share, last, atol=0.01)
    assert len(scan.centre_us) == STEPS - DEFAULT.warm_up_steps
    assert np.median(scan.centre_us) == pytest.approx(np.median(own.work), rel=0.01)


def test_a_rank_without_records_stays_unknown():
    made = run(*slowed(3, 1.5, 1_701, None), missing_ranks=(6,))
    scan = scan_run(MatrixSource(made.data()), budget=SMALL)
    assert np.isnan(scan.slowdown()[6])
    assert blamed(long_verdict(made)) == {3}


def test_from_a_run_file_the_answer_is_that_of_the_matrices(tmp_path):
    made = run(*slowed(5, 1.5, 3_000, 3_030), *slowed(3, 1.2, 1_001, None)).data()
    save_run(made, tmp_path / "long.starprof")
    with open_steps(tmp_path / "long.starprof") as source:
        stored = diagnose_long(source, budget=SMALL).verdict
    (a, b), (c, d) = stored.findings, diagnose_long(MatrixSource(made), budget=SMALL).verdict.findings
    assert [(f.ranks, f.onset_step, f.end_step) for f in (a, b)] == [
        (f.ranks, f.onset_step, f.end_step) for f in (c, d)
    ]
    assert blamed(stored) == {3, 5}


def test_ranks_are_compared_with_those_of_their_own_stage():
    made = run(*slowed(6, 1.3, 0, None)).data()
    slower = {name: np.where(np.arange(8)[:, None] % 2, 1.0, 1.5) * v for name, v in made.steps.columns.items()}
    ranks = tuple(replace(info, role={"pp": i % 2, "dp": i // 2}) for i, info in enumerate(made.ranks))
    staged = replace(made, ranks=ranks, steps=Steps(made.steps.steps, slower, made.steps.start_mono_ns))
    slowdown = scan_run(MatrixSource(staged), budget=SMALL).slowdown()
    assert np.allclose(np.delete(slowdown, 6), 1.0, atol=0.05)
    assert slowdown[6] == pytest.approx(1.3, abs=0.05)


def test_holes_in_the_records_are_no_work_and_no_lateness():
    made = run(*slowed(3, 1.3, 0, None)).data()
    holes = np.random.default_rng(0).random(made.steps["dur_us"].shape) < 0.05
    columns = {name: np.where(holes, np.nan, values) for name, values in made.steps.columns.items()}
    broken = replace(made, steps=Steps(made.steps.steps, columns, np.where(holes, 0, made.steps.start_mono_ns)))
    scan = scan_run(MatrixSource(broken), budget=SMALL)
    assert np.allclose(scan.slowdown(), scan_run(MatrixSource(made), budget=SMALL).slowdown(), atol=0.01)
    assert np.isfinite(scan.centre_us).all()
    assert {rank for f in diagnose_long(MatrixSource(broken), budget=SMALL).verdict.findings for rank in f.ranks} == {3}


@pytest.mark.parametrize("ranks", [2, 3, 7, 8, 70, 71])
@pytest.mark.parametrize("whole", [True, False])
def test_references_are_the_medians_of_the_other_ranks(ranks, whole):
    work = np.random.default_rng(ranks).normal(100.0, 5.0, (20, ranks)).astype(np.float32)
    if not whole:
        work[3, 1] = np.nan
    found = np.broadcast_to(reference_of(work, whole, np.zeros(ranks, np.int64)), work.shape)
    exact = peer_centre(work.T.astype(np.float64), np.zeros(ranks, np.int64)).T
    seen = ~np.isnan(work)
    assert np.allclose(found[seen], exact[seen], rtol=0.01 if ranks > 64 else 1e-6, equal_nan=True)
    assert np.allclose(centre_of(work, whole), np.nanmedian(work, axis=1), rtol=1e-6)


def test_quantiles_of_the_slowdown_are_within_half_a_bin():
    ratio = np.random.default_rng(0).lognormal(0.3, 0.2, (5_000, 3)).astype(np.float32)
    counts = counted(ratio, whole=True)
    for share in (0.05, 0.5, 0.95):
        assert np.allclose(quantile(counts, share), np.quantile(ratio, share, axis=0), rtol=0.005)


def test_the_verdict_of_the_scan_alone_names_the_lasting_slowness():
    scan = scan_run(MatrixSource(run(*slowed(3, 1.2, 1_001, None)).data()), budget=SMALL)
    verdict = judged_scan(scan)
    assert blamed(verdict) == {3}
    assert abs(verdict.findings[0].onset_step - 1_001) <= scan.width


@pytest.mark.parametrize("seed", range(2))
def test_many_healthy_ranks_with_heavy_tails_are_not_accused(seed):
    made = SyntheticRun(ranks=96, steps=1_024, counters=False, seed=seed, cv=0.15, heavy_tail=True).data()
    small = Budget(block_cells=96 * 128, raw_cells=96 * 256, kept_cells=96 * 128, least_columns=128)
    assert diagnose_long(MatrixSource(made), budget=small).verdict.verdict == "none"
