"""On a GPU the host's own times say nothing: the events' times do."""

import numpy as np
from verdicts import only_finding

from starprof.analysis import diagnose
from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.model import causes


def on_gpu(data):
    """The same run as a GPU job records it: kernels are launched at once and the host waits at the step's end."""
    columns = data.steps.columns
    for name in ("forward", "backward", "optimizer", "blocked"):
        columns[f"gpu_{name}_us"][:] = columns[f"{name}_us"]
        columns[f"{name}_us"][:] = 300.0
    spans = [columns[f"{n}_us"] for n in ("data_wait", "h2d", "forward", "backward", "optimizer", "blocked")]
    columns["unaccounted_us"][:] = columns["dur_us"] - np.sum(spans, axis=0)
    return data


def test_a_slow_backward_on_the_device_is_found_by_its_events():
    data = on_gpu(SyntheticRun(faults=(Slow("backward", (1,), us=30_000, start=100),)).data())
    finding = only_finding(diagnose(data))
    assert (finding.ranks, finding.cause) == ((1,), causes.BACKWARD_COMPUTE)
    assert abs(finding.onset_step - 100) <= 3


def test_a_device_slow_in_forward_and_backward_is_slow_compute():
    faults = (Slow("backward", (1,), factor=1.5, start=100), Slow("forward", (1,), factor=1.5, start=100))
    finding = only_finding(diagnose(on_gpu(SyntheticRun(faults=faults).data())))
    assert (finding.ranks, finding.cause) == ((1,), causes.GPU_COMPUTE)
    assert finding.cause_share >= 0.8


def test_a_healthy_gpu_run_accuses_nobody():
    assert diagnose(on_gpu(SyntheticRun().data())).verdict == "none"
