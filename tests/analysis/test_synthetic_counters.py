"""Counters of synthetic runs look as recorded ones do: they lag, flicker, count bursts, restart and have holes."""

from dataclasses import replace

import numpy as np
import pytest

from starprof.analysis import diagnose
from starprof.analysis.comparison import Comparison
from starprof.analysis.cost import Reduction
from starprof.analysis.healthy_past import healthy_past
from starprof.analysis.own_time import own_time
from starprof.analysis.persistent import slow_ranks
from starprof.analysis.regimes import regimes
from starprof.analysis.settings import DEFAULT
from starprof.analysis.slowness import Slowness
from starprof.analysis.synthetic import (
    CpuHog,
    Dealt,
    Gauge,
    Neighbour,
    Recording,
    Slow,
    SlowPath,
    SyntheticRun,
    Trouble,
)
from starprof.analysis.synthetic.trouble import GPU_ID_0

COMPUTE = {"forward": 12_000.0, "backward": 22_000.0}


def gpu_samples(*faults, rank=1, **recipe):
    data = SyntheticRun(gpus=True, faults=faults, **recipe).data()
    samples = data.samples["gpu_sample"]
    return data, samples[samples["gpu"] == GPU_ID_0 + rank]


def test_a_temperature_that_lags_is_on_its_way_after_one_time_constant():
    hot = Trouble((1,), shows={"gpu_sample.temperature_c": Gauge(92.0, lag_s=2.0)}, start=100)
    data, samples = gpu_samples(hot)
    since = (samples["mono_ns"] - data.steps.start_mono_ns[1, 100]) / 1e9
    heat = samples["temperature_c"]
    assert heat[since < 0].mean() == pytest.approx(62.0, abs=0.5)
    assert heat[(since > 1.8) & (since < 2.2)].mean() == pytest.approx(62.0 + 30.0 * (1 - np.exp(-1)), abs=2.0)
    assert heat[since > 12].mean() == pytest.approx(92.0, abs=0.5)


def test_a_bit_that_flickers_is_set_in_its_share_of_the_samples():
    _, samples = gpu_samples(Trouble((1,), shows={"gpu_sample.clock_event_reasons": Gauge(0x20, share=0.7)}))
    assert (samples["clock_event_reasons"] == 0x20).mean() == pytest.approx(0.7, abs=0.08)


def test_spells_lose_time_and_show_only_while_they_last():
    spells = ((50, 80), (120, 160))
    slow = Trouble((1,), COMPUTE, {"gpu_sample.sm_clock_mhz": 900.0}, spells=spells)
    run = SyntheticRun(gpus=True, faults=(slow,))
    data = run.data()
    lost = data.steps["forward_us"][1] - run.own_us["forward"][1]
    assert np.flatnonzero(lost > 1_000.0).tolist() == [*range(50, 80), *range(120, 160)]
    samples = data.samples["gpu_sample"].query("gpu == 41")
    inside = [
        samples["mono_ns"].between(data.steps.start_mono_ns[1, a], data.steps.start_mono_ns[1, b], inclusive="left")
        for a, b in spells
    ]
    assert ((samples["sm_clock_mhz"] < 1_000.0) == (inside[0] | inside[1])).all()


def test_a_counter_of_lost_time_grows_by_its_share_of_what_the_rank_lost():
    fault = Trouble((1,), COMPUTE, counts={"cpu_sample.steal_us": 0.9}, start=100)
    run = SyntheticRun(faults=(fault,))
    stolen = run.data().samples["cpu_sample"].query("cpu == 1")["steal_us"]
    lost = sum(values[1].sum() for values in run.excess_us()[0].values())
    assert stolen.iloc[-1] == pytest.approx(0.9 * lost, rel=0.01)


def test_uneven_growth_has_the_same_mean():
    even, uneven = (
        gpu_samples(Trouble((1,), grows={"gpu_sample.ecc_corrected": 200.0}, bursts=bursts))[1]["ecc_corrected"]
        for bursts in (0.0, 1.0)
    )
    assert uneven.iloc[-1] == pytest.approx(even.iloc[-1], rel=0.2)
    assert uneven.diff().std() > 3 * even.diff().std()


def test_what_step_records_count_is_counted_in_hit_steps_only():
    data = SyntheticRun(faults=(Trouble((1,), COMPUTE, records={"alloc_retries": 5.0}, start=100),)).data()
    retries = data.steps["alloc_retries"]
    assert retries[1, 100:].min() >= 1.0
    assert retries[1, :100].max() == retries[[0, 2, 3]].max() == 0.0


def test_samples_of_a_recording_are_lost_at_their_rate_and_in_holes():
    whole = SyntheticRun(nodes=2)
    recorded = SyntheticRun(nodes=2, recording=Recording(lost=0.05, holes=((1, 0.4, 0.6),)))
    before, after = (run.data().samples["node_sample"]["node"].value_counts() for run in (whole, recorded))
    assert after[0] / before[0] == pytest.approx(0.95, abs=0.03)
    assert after[1] / before[1] == pytest.approx(0.95 * 0.8, abs=0.03)


def test_a_restarted_counter_begins_at_zero_and_the_others_go_on():
    reset = Recording(jitter=0.0, lost=0.0, resets=(("nic_sample", 1, 0.5),))
    samples = SyntheticRun(nodes=2, recording=reset).data().samples["nic_sample"]
    falls = samples.groupby("node")["tx_bytes"].apply(lambda values: int((values.diff() < 0).sum()))
    assert falls.tolist() == [0, 1]


def test_tables_without_a_collector_are_absent_and_dear_columns_are_read_once_a_second():
    samples = SyntheticRun(recording=Recording(jitter=0.0, lost=0.0, absent=("tcp_sample", "tcp"))).data().samples
    assert "tcp_sample" not in samples
    assert samples["process_sample"]["last_cpu"].notna().mean() == pytest.approx(0.1, abs=0.01)
    assert samples["process_sample"]["cpu_us"].notna().all()


def test_a_neighbour_on_a_free_core_is_recorded_and_costs_nothing():
    run = SyntheticRun(faults=(Neighbour(0, 7),))
    samples = run.data().samples["process_sample"]
    assert (samples.query("rank == -1")["last_cpu"] == 7).all()
    assert run.cost_seconds() == 0.0


def test_dealt_sizes_are_recorded_and_compute_follows_them():
    run = SyntheticRun(faults=(Dealt("samples", (2,), factor=1.5),))
    steps = run.data().steps
    assert (steps["samples"][2] == 48.0).all()
    assert steps["forward_us"][2] == pytest.approx(1.5 * run.own_us["forward"][2], rel=1e-3)


def test_a_slow_path_shows_on_the_sockets_of_its_two_ends_only():
    samples = SyntheticRun(nodes=4, faults=(SlowPath(1, 2),)).data().samples["tcp_sample"]
    slow = samples.groupby("rank")["rtt_us"].max() > 10_000
    assert slow[slow].index.tolist() == [1, 2]


@pytest.mark.parametrize("threads", [4, 40])
def test_waiting_for_a_cpu_is_oversubscription_only_with_more_threads_than_the_peers(threads):
    cpu = {"forward": 20_000.0, "backward": 36_000.0, "unaccounted": 1_000.0, "optimizer": 4_000.0}
    shows = {"process_sample.threads": float(threads)}
    fault = Trouble((1,), cpu, shows, counts={"process_sample.run_delay_us": 1.0}, start=120)
    (finding,) = diagnose(SyntheticRun(cores=4, faults=(fault,)).data()).findings
    assert finding.ranks == (1,)
    assert (finding.cause == "oversubscription") == (threads == 40)
    assert "runnable but not running" in " ".join(finding.evidence) or "waiting for a CPU" in " ".join(finding.evidence)


def test_a_process_that_takes_as_little_as_the_rank_waits_is_foreign_load():
    (finding,) = diagnose(SyntheticRun(ranks=8, faults=(CpuHog(1, share=0.07, start=100),)).data()).findings
    assert (finding.ranks, finding.cause) == ((1,), "cpu-contention")


def test_a_remapped_row_is_found_where_samples_are_seconds_apart():
    row = {"gpu_sample.remapped_rows": 30.0}
    faults = (Trouble((1,), COMPUTE, start=120), Trouble((1,), grows=row, start=120, end=122))
    (finding,) = diagnose(SyntheticRun(gpus=True, rate_hz=0.5, faults=faults).data()).findings
    assert (finding.ranks, finding.cause) == ((1,), "gpu-ecc")


def test_spells_that_are_no_findings_are_no_healthy_past_of_those_that_are():
    comparison = Comparison(own_time(SPELLS.data(), DEFAULT), DEFAULT)
    finding = next(s for s in slow_ranks(comparison)[0] if s.rows == (2,))
    one = replace(finding, kind="transient", start=57, end=97, elsewhere=None, steps=in_steps((60, 100)))
    past = healthy_past(comparison, one)
    assert not (past & in_steps((60, 100), (141, 157), (181, 198))).any()
    assert past.sum() > 200


def test_the_past_of_a_rank_that_is_slow_once_is_all_the_rest():
    run = replace(SPELLS, faults=(Trouble((2,), {"forward": 3_000.0}, start=60, end=100),), cv=0.08)
    comparison = Comparison(own_time(run.data(), DEFAULT), DEFAULT)
    slow = Slowness("transient", (2,), 57, 97, (57, 57), in_steps((60, 100)), Reduction({}), "rank")
    assert (healthy_past(comparison, slow) == ~in_steps((60, 100))).all()


@pytest.mark.parametrize("seed", range(4))
def test_regimes_follow_each_other_and_cover_the_stretch(seed):
    rng = np.random.default_rng(seed)
    levels = np.repeat([1.0, 6.0, 1.0, 8.0, 0.5, 5.0], [22, 11, 33, 12, 60, 35])
    found = regimes(levels * rng.lognormal(0.0, 0.4, len(levels)), 1.0, 10)
    edges = [0, *(regime.end for regime in found)]
    assert [regime.start for regime in found] == edges[:-1]
    assert edges == sorted(set(edges))
    assert edges[-1] == len(levels)


SPELLS = SyntheticRun(
    faults=(Trouble((2,), COMPUTE, spells=((60, 100), (140, 158), (180, 199))),), steps=303, ranks=8, cv=0.02
)


def in_steps(*spells):
    """Mask of the kept steps in some stretches; three of warm-up are not kept."""
    mask = np.zeros(303, bool)
    for first, end in spells:
        mask[first:end] = True
    return mask[3:]


def test_a_cap_that_everybody_reports_at_full_load_is_not_said_to_be_absent():
    usual = Trouble((0, 1, 2, 3), shows={"gpu_sample.clock_event_reasons": 4.0})
    slow = Trouble((1,), COMPUTE, {"gpu_sample.sm_clock_mhz": 1_000.0}, start=120)
    (finding,) = diagnose(SyntheticRun(gpus=True, faults=(usual, slow)).data()).findings
    text = " ".join(finding.evidence)
    assert (finding.ranks, finding.cause) == ((1,), "gpu-clock")
    assert "reported neither" not in text
    assert "can't be told" in text


@pytest.mark.parametrize("ranks", [40, 400])
def test_stalls_that_go_round_are_told_from_the_noise_of_many_ranks(ranks):
    moving = Slow("unaccounted", None, us=130_000.0, share=0.5, rotating=True)
    verdict = diagnose(SyntheticRun(ranks, 150, cv=0.065, faults=(moving,), counters=False).data())
    assert verdict.verdict == "rotating"
    assert not any(finding.ranks for finding in verdict.findings)


def test_a_heavy_tail_of_the_noise_of_many_ranks_is_nothing_that_goes_round():
    verdict = diagnose(SyntheticRun(400, 150, cv=0.08, heavy_tail=True, counters=False).data())
    assert (verdict.verdict, verdict.findings) == ("none", ())


def test_a_slowness_shorter_than_what_lies_before_it_keeps_its_end():
    slow = Trouble((3,), {"forward": 30_000.0, "backward": 55_000.0}, start=60, end=110)
    run = SyntheticRun(12, 207, cv=0.03, ar1=0.55, faults=(slow,), counters=False)
    (finding,) = [f for f in diagnose(run.data()).findings if f.ranks]
    assert (finding.ranks, finding.onset_step, finding.end_step) == ((3,), 60, 109)
