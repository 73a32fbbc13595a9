"""Metrics without step times: nobody is blamed, whatever they show; what differs is evidence for a closer look."""

import numpy as np
import pandas as pd
import pytest

from starprof.analysis import diagnose
from starprof.importers.base import run_of
from starprof.importers.source import Source
from starprof.model.schema import BY_NAME
from starprof.model.verdict import VERDICT_SCHEMA

POWER_CAP, HEAT = 0x04, 0x20


def frame(table, rows):
    return pd.DataFrame(rows, columns=list(BY_NAME[table].names)).astype(
        {c.name: "float64" for c in BY_NAME[table].columns if c.type.value != "VARCHAR"} | {"node": "int64"}
    )


def gpus(count=4, samples=60, node=0, **columns):
    """Samples of healthy busy GPUs; a column may be a function of (gpu, second)."""
    usual = {
        "util_pct": 99.0,
        "power_w": 300.0,
        "power_limit_w": 300.0,
        "sm_clock_mhz": 1410.0,
        "temperature_c": 62.0,
        "clock_event_reasons": 0,
        "pcie_gen": 4,
    }
    rows = []
    for gpu in range(count):
        for second in range(samples):
            told = {k: v(gpu, second) if callable(v) else v for k, v in (usual | columns).items()}
            rows.append({"node": node, "gpu": gpu, "mono_ns": second * 10**9, **told})
    return frame("gpu_sample", rows)


def judge(gpu_sample=None, nodes=None, **tables):
    samples = {k: v for k, v in {"gpu_sample": gpu_sample, **tables}.items() if v is not None}
    run = run_of("nvidia-smi", [Source("x", None)], samples=samples, nodes=nodes)
    verdict = diagnose(run)
    assert verdict.verdict == "inconclusive"
    assert verdict.cost.seconds == 0
    assert verdict.steps is None
    assert "step times" in verdict.reason
    assert not any(f.ranks or f.nodes for f in verdict.findings)
    assert all(f.cause == "unknown" and f.slowdown == 1.0 for f in verdict.findings)
    return verdict


def evidence(verdict):
    return " ".join(line for finding in verdict.findings for line in finding.evidence)


def test_one_capped_gpu_of_four_is_evidence_and_no_part_is_named():
    verdict = judge(
        gpus(
            power_w=lambda g, _: 150.0 if g == 2 else 300.0,
            sm_clock_mhz=lambda g, _: 1005.0 if g == 2 else 1410.0,
            clock_event_reasons=lambda g, s: POWER_CAP if g == 2 or s % 3 == 0 else 0,
        )
    )
    said = evidence(verdict)
    assert "GPU 2" in said
    assert "150 W (peers 300)" in said
    assert "power cap" in said
    everything = str(verdict.to_json()).lower()
    assert not any(part in everything for part in ("psu", "cable", "firmware", "supply"))
    assert "GPU 0" not in said


def test_hot_gpu_among_cool_peers_is_evidence_of_heat():
    verdict = judge(
        gpus(
            temperature_c=lambda g, _: 88.0 if g == 1 else 62.0,
            sm_clock_mhz=lambda g, _: 500.0 if g == 1 else 1755.0,
            clock_event_reasons=lambda g, _: HEAT if g == 1 else 0,
        )
    )
    assert "88 C (peers 62)" in evidence(verdict)
    assert "heat held its clock down in 100 %" in evidence(verdict)


def test_gpu_without_peers_is_compared_with_its_own_past_and_the_power_cap_is_ruled_out():
    verdict = judge(
        gpus(
            count=1,
            samples=3600,
            sm_clock_mhz=lambda _, s: 1755.0 if s < 600 else 500.0,
            power_w=lambda _, s: 290.0 if s < 600 else 150.0,
            temperature_c=lambda _, s: 70.0 if s < 600 else 88.0,
            clock_event_reasons=lambda _, s: 0 if s < 600 else HEAT,
        )
    )
    assert "fell from 1755 to 500 MHz" in evidence(verdict)
    assert "the power cap is not what holds it" in evidence(verdict)


def test_power_cap_at_full_load_on_all_gpus_is_how_they_work():
    verdict = judge(gpus(clock_event_reasons=POWER_CAP, sm_clock_mhz=lambda _, s: 1725.0 if s < 20 else 1365.0))
    assert verdict.findings == ()


def test_idle_gpus_are_not_judged():
    idle = {"util_pct": 0.0, "power_w": 60.0, "sm_clock_mhz": 210.0, "pcie_gen": 1}
    busy = {"util_pct": 99.0, "power_w": 300.0, "sm_clock_mhz": 1410.0, "pcie_gen": 4}
    mixed = {k: (lambda g, _, k=k: idle[k] if g == 3 else busy[k]) for k in idle}
    assert judge(gpus(**mixed)).findings == ()
    verdict = judge(
        gpus(**{k: v for k, v in idle.items() if k != "power_w"}, power_w=lambda g, _: 60.0 + 30 * (g == 1))
    )
    assert verdict.findings == ()
    assert "No GPU was busy" in verdict.reason


def test_samples_before_the_load_do_not_count():
    verdict = judge(
        gpus(util_pct=lambda g, s: 0.0 if s < 30 else 99.0, pcie_gen=lambda g, s: 1 if s < 30 and g == 0 else 4)
    )
    assert verdict.findings == ()


def test_link_that_is_slower_under_load_than_at_its_peers_is_evidence():
    assert "PCIe generation 1 (peers 4)" in evidence(judge(gpus(pcie_gen=lambda g, _: 1 if g == 3 else 4)))


def test_healthy_spread_between_gpus_is_no_evidence():
    rng = np.random.default_rng(3)
    spread = rng.normal(0, 1, 8)
    verdict = judge(
        gpus(
            count=8,
            power_w=lambda g, s: 300 + 4 * spread[g] + rng.normal(0, 10),
            sm_clock_mhz=lambda g, s: 1400 + 12 * spread[g] + 15 * rng.integers(-2, 3),
            temperature_c=lambda g, s: 62 + 3 * spread[g],
        )
    )
    assert verdict.findings == ()


def test_two_gpus_that_differ_are_not_told_which_is_odd():
    said = evidence(judge(gpus(count=2, power_w=lambda g, _: 150.0 if g else 300.0)))
    assert "can't be told" in said


def test_gpus_of_other_products_are_no_peers():
    sample = gpus(power_w=lambda g, _: 150.0 if g == 2 else 300.0)
    described = frame("gpu", [{"node": 0, "gpu": g, "name": "T4" if g == 2 else "V100"} for g in range(4)])
    assert judge(sample, gpu=described).findings == ()


def test_few_samples_are_not_judged():
    assert judge(gpus(samples=4, power_w=lambda g, _: 150.0 if g == 2 else 300.0)).findings == ()


def test_errors_that_grow_on_one_gpu_are_evidence_and_old_ones_are_not():
    said = evidence(judge(gpus(ecc_uncorrected=lambda g, s: (s // 20) if g == 1 else 0.0)))
    assert "GPU 1 counted 2 uncorrectable memory errors" in said
    assert judge(gpus(ecc_uncorrected=lambda g, s: 50.0 if g == 1 else 0.0)).findings == ()
    assert judge(gpus(ecc_uncorrected=lambda g, s: 50.0 if s < 30 else 0.0)).findings == ()


def test_host_under_pressure_stands_out_among_three():
    rows = [
        {"node": n, "mono_ns": s * 10**9, "psi_cpu_some_us": s * (400_000 if n == 2 else 10_000)}
        for n in range(4)
        for s in range(30)
    ]
    named = pd.DataFrame([{**dict.fromkeys(BY_NAME["node"].names), "node": n, "host": f"h{n}"} for n in range(4)])
    assert "On h2 tasks waited for a CPU 40 % of the time" in evidence(
        judge(node_sample=frame("node_sample", rows), nodes=named)
    )
    assert judge(node_sample=frame("node_sample", [r for r in rows if r["node"] > 1])).findings == ()


def test_slow_port_and_losses_stand_out_among_hosts():
    rows = [
        {"node": n, "nic": 0, "mono_ns": s * 10**9, "speed_mbit": 25_000 if n == 1 else 100_000,
         "rx_packets": s * 10**6, "tx_packets": s * 10**6, "rx_dropped": s * 10**4 if n == 3 else 0}
        for n in range(4) for s in range(30)
    ]  # fmt: skip
    names = frame("nic", [{"node": n, "nic": 0, "name": "eth0"} for n in range(4)])
    said = evidence(judge(nic_sample=frame("nic_sample", rows), nic=names))
    assert "eth0 of node 1 runs at 25000 Mbit/s" in said
    assert "eth0 of node 3 lost 0.5 %" in said


@pytest.mark.parametrize("steps", [0, 40])
def test_steps_beside_the_metrics_are_judged_instead(steps):
    from starprof.model.rundata import RankInfo

    run = run_of(
        "x",
        [Source("x", None)],
        ranks=[RankInfo(0, 0, "n")],
        steps=range(steps),
        columns={"dur_us": np.full((1, steps), 1e5)},
        samples={"gpu_sample": gpus(count=1)},
        timing="own",
    )
    assert ("These are metrics" in diagnose(run).reason) == (steps == 0)


def test_verdict_of_metrics_has_the_stable_form():
    assert judge(gpus()).to_json()["schema"] == VERDICT_SCHEMA
