"""What is advised for recorded runs: the cure, another mode, what to record, or nothing."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from starprof.analysis.counters import Counters
from starprof.analysis.diagnose import diagnose
from starprof.analysis.synthetic import CpuHog, Pinned, Quota, Slow, SlowNic, SlowPath, SyntheticRun
from starprof.cli.options import options_of
from starprof.control import modes
from starprof.decision.advice import Advice, advise, room
from starprof.decision.advice.evidence import evidence
from starprof.decision.advice.moves import MOVES
from starprof.decision.advice.nodes import node_loads
from starprof.decision.advice.ranking import ranking
from starprof.decision.choice.situation import Limits
from starprof.errors import NoDataError
from starprof.model import causes
from starprof.model.rundata import RunData
from starprof.model.verdict import Cost, Finding, Verdict

SLOW = Slow("backward", ranks=(3,), us=60_000.0, start=60)


def run(*faults: Any, ranks: int = 8, steps: int = 300, **recipe: Any) -> RunData:
    return SyntheticRun(ranks=ranks, steps=steps, faults=faults, **recipe).data()


def advised(data: RunData, verdict: Verdict | None = None) -> Advice:
    return advise(data, verdict or diagnose(data), modes.NOT_CARRIED_OUT)


@pytest.fixture(scope="module")
def slow() -> RunData:
    return run(SLOW)


@pytest.mark.parametrize(
    ("data", "kind", "cause", "command"),
    [
        (run(Quota(2, start=50)), "resource", causes.CGROUP_THROTTLING, "echo max > /sys/fs/cgroup/job/rank2/cpu.max"),
        (run(Pinned(2, start=50)), "resource", causes.AFFINITY, "taskset -apc 0-7 1002"),
        (run(CpuHog(2, start=50)), "resource", causes.CPU_CONTENTION, None),
        (run(SlowNic(2, start=50), nodes=4), "network", causes.NIC_BANDWIDTH, None),
        (run(SlowPath(1, 2, start=50), nodes=4), "network", causes.NETWORK_PATH, None),
        (
            run(Slow("data_wait", ranks=(1,), us=40_000.0, start=50)),
            "program",
            causes.DATA_LOADING,
            "DataLoader(..., num_workers=2, prefetch_factor=4, persistent_workers=True)",
        ),
    ],
)
def test_the_cure_of_each_fault_comes_first(data, kind, cause, command):
    advice = advised(data)
    first = advice.steps[0]
    assert (advice.do, first.kind, first.cause) == ("act", kind, cause)
    assert command is None or first.commands == (command,)
    assert first.saves.share == pytest.approx(advice.now.share, abs=0.02)


def test_a_mode_comes_first_where_the_cause_has_to_be_found_out(slow):
    advice = advised(slow)
    assert advice.do == "act"
    assert [step.kind for step in advice.steps[:2]] == ["mode", "program"]
    assert advice.steps[0].ranks == (3,)
    # Only rank 3 is slow: without it steps would take 45 % less since it is, and no mode can save more.
    assert 0.25 < advice.steps[0].saves.low <= advice.steps[0].saves.share < 0.45


@pytest.mark.parametrize("seed", range(6))
def test_a_healthy_run_is_left_alone(seed):
    advice = advised(run(seed=seed, cv=0.05, heavy_tail=bool(seed % 2)))
    assert advice.do == "nothing"
    assert advice.headline.startswith("Do nothing")
    assert not [step for step in advice.steps if step.kind == "mode"]


def test_slowness_that_is_over_is_left_alone():
    advice = advised(run(replace(SLOW, end=200), steps=400))
    assert (advice.do, advice.steps) == ("nothing", ())
    assert advice.headline == "Do nothing: what was slow is over"
    assert "ended with step 199" in advice.why


def test_slowness_that_costs_less_than_a_change_is_left_alone(slow):
    verdict = diagnose(slow)
    little = replace(verdict.findings[0], cost_seconds=verdict.findings[0].cost_seconds / 100)
    cheap = replace(verdict, cost=Cost(little.cost_seconds, verdict.cost.share / 100, 0.0), findings=(little,))
    quick = run()
    advice = advised(quick, cheap)
    assert advice.do == "nothing"
    assert "below 1 %" in advice.why


def test_planned_work_of_rank_0_is_no_reason_to_act():
    advice = advised(run(Slow("checkpoint", ranks=(0,), us=400_000.0, every=50)))
    assert advice.do == "nothing"
    assert [step.cause for step in advice.steps] == [causes.CHECKPOINT]


def test_a_verdict_that_does_not_tell_changes_nothing():
    advice = advised(run(SLOW), replace(diagnose(run(SLOW)), verdict="inconclusive", reason="Half of it is lost."))
    assert advice.do == "record"
    assert not [step for step in advice.steps if step.kind == "mode"]
    assert "Half of it is lost." in advice.why


def test_no_mode_sets_a_job_going_that_hangs(slow):
    finding = Finding("one-off", causes.MISSING_COLLECTIVE, ranks=(2,), confidence=0.9, action="Find the branch.")
    advice = advised(slow, replace(diagnose(slow), verdict="hang", findings=(finding,), cost=Cost(0.0, 0.0, 0.0)))
    assert (advice.do, advice.modes) == ("act", ())
    assert advice.steps[0].what == "make all ranks call the same collectives"
    assert "stands still" in advice.why


def test_slowness_that_moves_every_round_is_no_reason_to_take_more_risk():
    advice = advised(run(Slow("backward", us=60_000.0, rotating=True)))
    step = advice.steps[0]
    assert step.kind == "mode"
    row = next(row for row in advice.modes if step.commands[0].startswith(row.command))
    assert row.accuracy_risk <= Limits().accuracy_risk
    assert "accuracy risk" in next(row for row in advice.modes if row.mode == "asgd").barred


def test_a_mode_of_much_accuracy_risk_is_not_advised_against_a_lasting_straggler(slow):
    barred = {row.mode: row.barred for row in advised(slow).modes}
    assert "accuracy risk" in barred["asgd"]
    assert barred["native"] == ""


def test_every_interval_holds_its_gain(slow):
    for row in advised(slow).modes:
        if row.gain is not None and row.low is not None:
            assert row.low <= row.gain <= row.high, row.mode
            assert row.accuracy_risk <= row.accuracy_risk_fixed + 1e-12


def test_every_mode_that_is_not_barred_can_be_asked_for(slow):
    """By the same checks as `starprof ctl` and `starprof record --mode` make."""
    rows = [*advised(slow).modes, *advised(run(SLOW, nodes=2)).modes]
    assert len({row.mode for row in rows if not row.barred}) > 5
    for row in rows:
        if row.barred:
            continue
        options = options_of(shlex.split(row.command)[6::2])
        assert modes.mode(row.mode, options, range(8)).name == row.mode
        assert options == json.loads(json.dumps(dict(row.options)))


def test_modes_that_no_running_job_can_be_in_say_why(slow):
    barred = {row.mode: row.barred for row in advised(slow).modes}
    assert barred["zeno++"] == modes.NOT_CARRIED_OUT["zeno++"]


def switch(mono_ns: int, version: int | None, to: str, reason: str, by: str = "user") -> dict[str, Any]:
    return {
        "mono_ns": mono_ns,
        "version": version,
        "to_mode": to,
        "to_options": '{"m": 7}' if to == "m-sync" else None,
        "asked_by": by,
        "reason": reason,
    }


def refused_runs() -> list[tuple[RunData, str]]:
    base = run(SLOW)
    wanted = pd.DataFrame([switch(1, None, "m-sync", "closures")])
    back = pd.DataFrame([switch(1, 5, "m-sync", ""), switch(2, 9, "native", "its loop deviates", by="coordinator")])
    often = {**base.steps.columns, "collectives": np.ones_like(base.steps.columns["dur_us"])}
    return [
        (replace(base, sync_switches=wanted), "closures"),
        (replace(base, sync_switches=back), "its loop deviates"),
        (replace(base, ranks=tuple(replace(r, framework="fsdp2") for r in base.ranks)), "FSDP"),
        (replace(base, ranks=tuple(replace(r, framework="none") for r in base.ranks)), "DistributedDataParallel"),
        (replace(base, ranks=tuple(replace(r, device="cuda:0") for r in base.ranks)), "STARPROF_CONTROL_GPU"),
        (replace(base, ranks=tuple(replace(r, role={"tp": r.rank % 2}) for r in base.ranks)), "parts of a model"),
        (replace(base, steps=replace(base.steps, columns=often)), "collective in most steps"),
    ]


@pytest.mark.parametrize(("data", "reason"), refused_runs(), ids=lambda value: value if isinstance(value, str) else "")
def test_no_mode_is_advised_that_the_engine_would_refuse(data, reason):
    advice = advised(data, diagnose(run(SLOW)))
    assert len(advice.refused) == 1
    assert reason in advice.refused[0]
    assert not [step for step in advice.steps if step.kind == "mode"]
    assert "would pay, but can't be had" in advice.why
    assert advice.steps  # what cures the cause is advised all the same


def test_a_job_in_rounds_goes_back_when_nobody_is_slow_any_more():
    data = run(steps=200)
    advice = advised(replace(data, sync_switches=pd.DataFrame([switch(1, 0, "m-sync", "")])))
    assert advice.now.mode == "m-sync (m=7)"
    assert (advice.do, advice.steps[0].what) == ("act", "go back to native steps")
    assert advice.steps[0].commands == ("starprof ctl synthetic.starprof mode native",)


def test_batches_are_divided_by_speed(slow):
    step = next(step for step in advised(slow).steps if step.what == "divide the batch by speed")
    # Rank 3 takes 129 ms where the others take 68: 8 * 32 samples are divided in that proportion.
    assert "rank 3: 18; the others 34" in step.how
    assert step.commands == ("loss = loss * (samples_here * 8 / 256)",)


def test_the_measured_noise_scale_narrows_the_interval(slow):
    noise = pd.DataFrame([{"version": 9, "scale": 2.0, "low": 1.5, "high": 3.0}])
    wide, narrow = advised(slow), advised(replace(slow, sync_noise=noise))

    def width(advice: Advice) -> float:
        row = next(row for row in advice.modes if row.mode == "m-sync")
        return row.high / row.low

    assert width(narrow) < width(wide)
    assert any("was not measured" in caution for caution in wide.cautions)
    assert not any("was not measured" in caution for caution in narrow.cautions)


def test_a_cost_that_is_not_known_is_said():
    verdict = diagnose(run(SLOW))
    unpriced = replace(verdict, cost=Cost(0.0, 0.0, 0.0), findings=(replace(verdict.findings[0], cost_seconds=0.0),))
    advice = advised(run(SLOW), unpriced)
    assert advice.do == "act"
    assert "not known" in advice.why


def test_it_is_the_same_each_time_and_plain_json(slow):
    first, second = advised(slow).to_json(), advised(slow).to_json()
    assert first == second == json.loads(json.dumps(first, allow_nan=False))


def test_every_cause_has_its_move():
    assert set(MOVES) == causes.ALL - {causes.UNKNOWN}


@pytest.mark.parametrize(("nodes", "told"), [(3, "rank"), (1, "")])
def test_ranks_of_a_crowded_node_are_moved_where_another_one_has_room(nodes, told):
    crowded = run(*(CpuHog(rank, start=50, share=0.5) for rank in range(3)), ranks=3 * nodes, nodes=nodes, cores=4)
    advice = advised(crowded)
    moved = [step for step in advice.steps if step.kind == "placement"]
    assert [step.what.startswith(f"start {told}") for step in moved] == [True] * (nodes > 1)
    here = advice.inputs["nodes"][0]
    # Three processes outside the job take half of a core each, nearly all the time.
    assert here["others_cores"] == pytest.approx(1.4, abs=0.15)
    for step in moved:
        assert sum(here["ranks_cores"].values()) + here["others_cores"] > 0.9 * here["cores"]
        assert step.cause == causes.CPU_CONTENTION
        assert "node0 is at" in step.how
        assert "node0" not in step.what
        assert set(step.ranks) < {0, 1, 2}


def test_what_a_mode_needs_of_the_interfaces_is_told_by_counters():
    data = run(SLOW, nodes=4)
    known = evidence(data, diagnose(data))
    loads = node_loads(known, Counters(data))
    choice = ranking(data, known, modes.NOT_CARRIED_OUT).choice
    sent = 2 * loads[0].needs[0].bytes_per_s * float(np.median(known.iteration_s, axis=0).min())
    before, after = (
        next(s.outlook for s in choice.scores if s.mode == mode).gradients_per_s / 8 for mode in ("ssgd", choice.mode)
    )
    found = room.by_counters(known, loads, choice)
    assert [one.host for one in found] == ["node0", "node1", "node2", "node3"]
    assert found[0].more_bytes_per_s == pytest.approx(sent * (after - before))
    assert found[0].free_bytes_per_s == pytest.approx(loads[0].capacity.bytes_per_s - sent * before, rel=1e-3)
    assert any("which is free" in told for told in advised(data).cautions)
    full = [replace(load, others=replace(load.capacity, cores=0.0)) for load in loads]
    (first, *_) = room.estimates_told(room.by_counters(known, full, choice), choice.mode)
    assert first.startswith("By its counters node0 has 0 bytes/s free, and m-sync would need")


def test_the_recorded_momentum_decides_how_stale_gradients_may_be(slow):
    def risks(*momenta: float | None) -> dict[str, float]:
        told = [{} if momentum is None else {"momentum": momentum} for momentum in momenta]
        ranks = tuple(
            replace(info, detail={**info.detail, **told[at % len(told)]}) for at, info in enumerate(slow.ranks)
        )
        return {row.mode: row.accuracy_risk for row in advised(replace(slow, ranks=ranks)).modes}

    unknown, plain, heavy = risks(None), risks(0.0), risks(0.9)
    assert plain["asgd"] < 0.5 < unknown["asgd"] == heavy["asgd"]
    assert risks(0.0, None)["asgd"] == unknown["asgd"], "one rank that does not tell is enough to suppose the worst"


@pytest.mark.parametrize("data", [run(ranks=1), run(steps=1), run(steps=5), run(missing_ranks=tuple(range(8)))])
def test_a_run_that_tells_nothing_is_one_clear_line(data):
    with pytest.raises(NoDataError, match=r"^no advice: [^\n]+$"):
        advised(data)


@settings(max_examples=12, deadline=None)
@given(
    ranks=st.integers(1, 5),
    steps=st.integers(1, 60),
    holes=st.floats(0.0, 1.0),
    seed=st.integers(0, 1000),
    odd=st.sampled_from([np.nan, 0.0, 1e18, -1.0]),
    column=st.sampled_from(["dur_us", "blocked_us", "backward_us", "samples", "micro_batches"]),
    fault=st.sampled_from(
        [(), (Slow("backward", ranks=(0,), us=60_000.0),), (Slow("forward", rotating=True, us=1e5),)]
    ),
)
@example(ranks=2, steps=19, holes=1.0, seed=0, odd=0.0, column="dur_us", fault=())
def test_odd_runs_give_an_advice_or_one_line(ranks, steps, holes, seed, odd, column, fault):
    data = run(*fault, ranks=ranks, steps=steps, seed=seed, counters=False)
    gone = np.random.default_rng(seed).random(data.steps.columns[column].shape) < holes
    data.steps.columns[column][gone] = odd
    try:
        advice = advised(data)
    except NoDataError:
        return
    json.dumps(advice.to_json(), allow_nan=False)
    assert advice.do in ("act", "nothing", "record")
    assert advice.headline
