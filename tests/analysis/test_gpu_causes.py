"""Why a rank on a GPU is slow: each cause is named on its fault, and never because of its counters alone."""

from dataclasses import replace

import numpy as np
import pytest
from verdicts import blamed, only_finding, words

from starprof.analysis import diagnose
from starprof.analysis.synthetic import Slow, SyntheticRun, Trouble
from starprof.model import causes

COMPUTE = {"forward": 12_000.0, "backward": 22_000.0}
"""About +60 % of the compute of a step."""

THERMAL = {
    "gpu_sample.sm_clock_mhz": 1000.0,
    "gpu_sample.temperature_c": 88.0,
    "gpu_sample.power_w": 150.0,
    "gpu_sample.clock_event_reasons": 0x20,
}
POWER = {"gpu_sample.sm_clock_mhz": 1000.0, "gpu_sample.power_w": 150.0, "gpu_sample.power_limit_w": 150.0}
POWER_BIT = {"gpu_sample.sm_clock_mhz": 1000.0, "gpu_sample.power_w": 150.0, "gpu_sample.clock_event_reasons": 0x04}
CLOCK = {"gpu_sample.sm_clock_mhz": 1000.0, "gpu_sample.clock_event_reasons": 0x02, "gpu_sample.power_w": 170.0}
MEMORY_CLOCK = {"gpu_sample.memory_clock_mhz": 900.0, "gpu_sample.clock_event_reasons": 0.0}
FOREIGN = {"gpu_sample.foreign_processes": 1.0, "gpu_sample.foreign_memory_bytes": 9e9}
NARROW = {"gpu_sample.pcie_width": 4.0}
OLD = {"gpu_sample.pcie_gen": 1.0}
ECC = {"gpu_sample.ecc_corrected": 40.0}

FAULTS = {
    "thermal": (Trouble((1,), COMPUTE, THERMAL), causes.GPU_THERMAL),
    "power limit": (Trouble((1,), COMPUTE, POWER), causes.GPU_POWER_CAP),
    "power bit": (Trouble((1,), COMPUTE, POWER_BIT), causes.GPU_POWER_CAP),
    "clock": (Trouble((1,), COMPUTE, CLOCK), causes.GPU_CLOCK),
    "memory clock": (Trouble((1,), COMPUTE, MEMORY_CLOCK), causes.GPU_CLOCK),
    "foreign": (Trouble((1,), COMPUTE, FOREIGN), causes.GPU_FOREIGN_PROCESS),
    "ecc": (Trouble((1,), COMPUTE, grows=ECC), causes.GPU_ECC),
    "lanes": (Trouble((1,), {"h2d": 9_000.0}, NARROW), causes.PCIE_LINK),
    "generation": (Trouble((1,), {"h2d": 9_000.0}, OLD), causes.PCIE_LINK),
}
COUNTERS = {name: fault for name, (fault, _) in FAULTS.items()}
PHASES = {"h2d": 3_500.0}
CAUSES_OF_COUNTERS = {cause for _, cause in FAULTS.values()}


def run_of(*faults, **recipe) -> SyntheticRun:
    return SyntheticRun(gpus=True, faults=faults, phases_us={**SyntheticRun().phases_us, **PHASES}, **recipe)


def verdict_of(*faults, **recipe):
    return diagnose(run_of(*faults, **recipe).data())


@pytest.mark.parametrize("start", [0, 120])
@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_with_rank_onset_and_cost(name, start):
    fault, cause = FAULTS[name]
    run = run_of(replace(fault, start=start))
    finding = only_finding(diagnose(run.data()))
    assert (finding.ranks, finding.cause) == ((1,), cause)
    assert finding.cause_share >= 0.8
    assert abs(finding.onset_step - start) <= 3
    assert finding.cost_seconds == pytest.approx(run.cost_seconds(), rel=0.2)
    assert finding.action
    assert "was not the cause" in finding.verify


def oddity(name, ranks, start=120):
    """The counters of a fault without the time."""
    return replace(COUNTERS[name], on=ranks, adds={}, start=start)


@pytest.mark.parametrize("name", FAULTS)
def test_odd_counters_of_a_healthy_rank_are_no_finding(name):
    verdict = verdict_of(oddity(name, (1,)))
    assert (verdict.verdict, verdict.findings) == ("none", ())


@pytest.mark.parametrize("name", FAULTS)
def test_odd_counters_of_a_victim_do_not_make_it_the_culprit(name):
    verdict = verdict_of(Slow("optimizer", (2,), us=30_000, start=120), oddity(name, (1,)))
    finding = only_finding(verdict)
    assert (finding.ranks, finding.cause) == ((2,), causes.OPTIMIZER)


@pytest.mark.parametrize("name", FAULTS)
def test_counters_that_are_odd_on_all_ranks_alike_explain_nothing(name):
    slow = Trouble((1,), COUNTERS[name].adds, start=120)
    finding = only_finding(verdict_of(slow, oddity(name, (0, 1, 2, 3))))
    assert finding.ranks == (1,)
    assert finding.cause not in CAUSES_OF_COUNTERS


@pytest.mark.parametrize("name", FAULTS)
def test_counters_that_were_odd_before_the_rank_became_slow_explain_nothing(name):
    slow = Trouble((1,), COUNTERS[name].adds, start=120)
    finding = only_finding(verdict_of(slow, oddity(name, (1,), start=0)))
    assert finding.ranks == (1,)
    assert finding.cause not in CAUSES_OF_COUNTERS


@pytest.mark.parametrize("name", FAULTS)
def test_the_right_counters_with_the_wrong_phase_explain_nothing(name):
    finding = only_finding(verdict_of(replace(COUNTERS[name], adds={"data_wait": 30_000.0}, start=120)))
    assert (finding.ranks, finding.cause) == ((1,), causes.DATA_LOADING)


def test_a_clock_that_can_explain_only_a_part_is_quoted_but_not_named():
    little = {**THERMAL, "gpu_sample.sm_clock_mhz": 1500.0}
    finding = only_finding(verdict_of(Trouble((1,), COMPUTE, little, start=120)))
    assert (finding.ranks, finding.cause) == ((1,), causes.GPU_COMPUTE)
    assert "covers at most" in words(finding)


def test_a_power_cap_compares_power_and_names_no_part_of_the_supply():
    text = words(only_finding(verdict_of(Trouble((2,), COMPUTE, POWER))))
    assert "150 W" in text
    assert "its peers 28" in text
    assert "not known" in text
    for guess in ("PSU", "supply", "cable", "firmware"):
        assert guess not in text


def test_low_power_at_a_low_clock_is_said_to_rule_out_a_power_cap():
    finding = only_finding(verdict_of(Trouble((1,), COMPUTE, THERMAL, start=120)))
    assert "rules out a power cap" in words(finding)
    assert "88 degrees" in words(finding)


def test_a_power_cap_bit_at_full_healthy_load_is_no_finding():
    everybody = Trouble((0, 1, 2, 3), shows={"gpu_sample.clock_event_reasons": 0x04})
    assert verdict_of(everybody).verdict == "none"


def test_a_lower_clock_with_a_normal_step_time_is_no_slowdown():
    assert verdict_of(Trouble((1,), shows={"gpu_sample.sm_clock_mhz": 1365.0})).findings == ()


def test_an_idle_link_of_the_first_generation_is_nothing():
    data = run_of(Slow("h2d", (1,), us=9_000, start=120)).data()
    samples = data.samples["gpu_sample"]
    idle = samples.index % 2 == 0
    samples.loc[idle, ["util_pct", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"]] = 0.0
    samples.loc[idle, "pcie_gen"] = 1.0
    finding = only_finding(diagnose(data))
    assert (finding.ranks, finding.cause) == ((1,), causes.HOST_TO_DEVICE)


def test_a_link_as_narrow_as_its_peers_is_not_blamed():
    data = run_of(Slow("h2d", (1,), us=9_000, start=120)).data()
    data.samples["gpu_sample"]["pcie_width"] = 8.0
    assert only_finding(diagnose(data)).cause == causes.HOST_TO_DEVICE


def with_retries(data, row, steps, count):
    data.steps.columns["alloc_retries"][row, steps] = count
    return data


def test_allocator_retries_of_one_rank_in_its_late_steps_are_memory_pressure():
    data = with_retries(run_of(Trouble((3,), COMPUTE, start=120)).data(), 3, slice(120, None), 13)
    finding = only_finding(diagnose(data))
    assert (finding.ranks, finding.cause) == ((3,), causes.GPU_MEMORY_PRESSURE)
    assert "13 times" in words(finding)
    assert "no out-of-memory alarm" in words(finding)


@pytest.mark.parametrize(
    ("rows", "steps"),
    [
        ([0, 1, 2, 3], slice(120, None)),  # all ranks alike
        ([3], slice(0, None)),  # before it was slow as well
        ([3], slice(100, 120)),  # only before: the sum is high, the growth in late steps is 0
        ([2], slice(120, None)),  # a victim
    ],
)
def test_retries_that_do_not_part_the_slow_rank_from_the_others_are_not_blamed(rows, steps):
    data = with_retries(run_of(Trouble((3,), COMPUTE, start=120)).data(), np.array(rows)[:, None], steps, 13)
    finding = only_finding(diagnose(data))
    assert (finding.ranks, finding.cause) == ((3,), causes.GPU_COMPUTE)


def test_a_few_corrected_errors_are_not_blamed():
    finding = only_finding(verdict_of(Trouble((1,), COMPUTE, grows={"gpu_sample.ecc_corrected": 0.3}, start=120)))
    assert finding.cause == causes.GPU_COMPUTE


def test_a_row_remapped_when_the_slowness_began_is_named():
    data = run_of(Trouble((1,), COMPUTE, start=120)).data()
    samples = data.samples["gpu_sample"]
    onset = data.steps.start_mono_ns[1, 121]
    samples.loc[(samples["gpu"] == 41) & (samples["mono_ns"] >= onset), "remapped_rows"] = 2.0
    finding = only_finding(diagnose(data))
    assert (finding.ranks, finding.cause) == ((1,), causes.GPU_ECC)


def test_a_small_process_that_was_always_there_is_not_blamed():
    small = {"gpu_sample.foreign_processes": 1.0, "gpu_sample.foreign_memory_bytes": 8e6}
    finding = only_finding(verdict_of(Trouble((1,), COMPUTE, small)))
    assert (finding.ranks, finding.cause) == ((1,), causes.GPU_COMPUTE)


def test_a_gpu_whose_uuid_is_not_known_is_not_guessed():
    data = run_of(Trouble((1,), COMPUTE, THERMAL, start=120)).data()
    data = replace(data, ranks=tuple(replace(info, gpu_uuid=None) for info in data.ranks))
    assert only_finding(diagnose(data)).cause == causes.GPU_COMPUTE


def test_gpus_that_all_get_hot_are_uniform_and_nobody_is_blamed():
    verdict = verdict_of(Trouble((0, 1, 2, 3), COMPUTE, THERMAL, start=150))
    assert (verdict.verdict, blamed(verdict)) == ("uniform", set())
    assert only_finding(verdict).cause == causes.GPU_THERMAL


def test_a_slower_product_is_not_compared_with_the_clock_of_another():
    data = run_of(Trouble((1,), COMPUTE, {"gpu_sample.sm_clock_mhz": 1000.0})).data()
    data.samples["gpu"].loc[data.samples["gpu"]["gpu"] == 41, "name"] = "Small accelerator"
    finding = only_finding(diagnose(data))
    assert (finding.ranks, finding.cause) == ((1,), causes.GPU_COMPUTE)


def test_a_single_rank_that_gets_hot_is_compared_with_its_own_past():
    hot = {**THERMAL, "gpu_sample.sm_clock_mhz": 500.0, "gpu_sample.temperature_c": 88.0}
    run = run_of(Trouble((0,), {"forward": 14_000.0, "backward": 26_000.0}, hot, start=150), ranks=1)
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause, finding.ranks) == ("uniform", causes.GPU_THERMAL, ())
    text = words(finding)
    assert "its own past only" in text
    assert "rules out a power cap" in text
    assert abs(finding.onset_step - 150) <= 3


def test_another_process_on_the_gpu_of_a_single_rank_is_named_from_its_past():
    verdict = verdict_of(Trouble((0,), {"forward": 40_000.0, "backward": 70_000.0}, FOREIGN, start=150), ranks=1)
    assert only_finding(verdict).cause == causes.GPU_FOREIGN_PROCESS


def test_a_single_rank_that_runs_evenly_says_that_there_is_nobody_to_compare_it_with():
    verdict = verdict_of(ranks=1)
    assert (verdict.verdict, verdict.findings) == ("inconclusive", ())
    assert "nobody to compare" in verdict.reason


def test_other_processes_that_are_hidden_are_said_to_be_possible():
    data = run_of(Trouble((1,), COMPUTE, start=120)).data()
    data.samples["gpu_sample"]["foreign_processes"] = np.nan
    finding = only_finding(diagnose(data))
    assert finding.cause == causes.GPU_COMPUTE
    assert "hidden" in finding.next


def test_slow_gpu_compute_without_gpu_counters_says_what_to_record():
    data = run_of(Trouble((1,), COMPUTE, start=120)).data()
    data.samples["gpu_sample"] = data.samples["gpu_sample"].iloc[:0]
    finding = only_finding(diagnose(data))
    assert finding.cause == causes.GPU_COMPUTE
    assert "gpu_sample" in finding.next
