"""A whole job on few CPUs of its machine, and what only looks like it."""

from dataclasses import replace

import pandas as pd
import pytest
from verdicts import blamed, only_finding, words

from starprof.analysis import diagnose
from starprof.analysis.synthetic import SyntheticRun
from starprof.model import causes


def on_cpus(ranks, cores, cpus, used, delay, node_used=None, masks=None, workers=0):
    """Ranks that use `used` CPUs each, wait in the run queue for `delay` of the time, and may run on `cpus` only."""
    data = SyntheticRun(ranks, 200, cores=cores).data()
    samples = data.samples["process_sample"]
    seconds = (samples["mono_ns"] - samples["mono_ns"].min()) / 1e9
    where = samples["rank"].map(lambda rank: cpus[rank % len(cpus)]).astype(float)
    main = samples.assign(allowed_cpus=float(masks or len(cpus)), last_cpu=where, cpu_us=seconds * used * 1e6)
    main["run_delay_us"] = seconds * delay * 1e6
    processes = [main, *(main.assign(pid=main["pid"] + 5000 + i, is_rank=0, cpu_us=0.0) for i in range(workers))]
    whole = data.samples["cpu_sample"].copy()
    rows = whole["cpu"] == -1
    busy = ranks * used if node_used is None else node_used
    whole.loc[rows, "user_us"] = (whole.loc[rows, "mono_ns"] - whole["mono_ns"].min()) / 1e3 * busy
    frames = {"process_sample": pd.concat(processes, ignore_index=True), "cpu_sample": whole}
    return replace(data, samples={**data.samples, **frames})


@pytest.mark.parametrize(("ranks", "cores", "cpus"), [(1, 8, [0]), (4, 16, [3]), (4, 64, [0, 1])])
def test_a_job_on_few_cpus_that_it_fills_is_a_limit_on_all_of_it(ranks, cores, cpus):
    verdict = diagnose(on_cpus(ranks, cores, cpus, used=0.98 * len(cpus) / ranks, delay=0.5))
    finding = only_finding(verdict)
    assert (verdict.verdict, blamed(verdict), finding.cause) == ("uniform", set(), causes.AFFINITY)
    assert f"{len(cpus)} of {cores} CPUs" in words(finding)
    assert "KMP_AFFINITY" in finding.action


def test_the_loader_s_workers_count_among_the_processes():
    finding = only_finding(diagnose(on_cpus(1, 8, [0], used=0.98, delay=0.5, workers=4)))
    assert "The 5 processes of the job" in words(finding)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            {"ranks": 4, "cores": 8, "cpus": [0, 1, 2, 3], "used": 0.95, "masks": 1}, id="a core for each rank"
        ),
        pytest.param({"ranks": 1, "cores": 8, "cpus": [0], "used": 0.3}, id="a core that is not full"),
        pytest.param(
            {"ranks": 1, "cores": 8, "cpus": [0], "used": 0.98, "node_used": 7.9}, id="a machine full of others"
        ),
        pytest.param({"ranks": 1, "cores": 2, "cpus": [0, 1], "used": 1.9}, id="the whole machine"),
    ],
)
def test_other_masks_are_no_confinement(case):
    verdict = diagnose(on_cpus(delay=0.2, **case))
    assert causes.AFFINITY not in {finding.cause for finding in verdict.findings}
