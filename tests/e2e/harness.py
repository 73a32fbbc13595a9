"""Record a real job with a real fault in it, and ask starprof what was wrong."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from starprof.demo import job
from starprof.demo.faults import Fault
from starprof.demo.scenarios import true_cost_seconds

FAULTY = Path(__file__).with_name("faulty.py")
ONSET_TOLERANCE_STEPS = 3
COST_TOLERANCE = 0.20
WARM_UP_STEPS = 10


HEALTHY = Fault("none", step=40)


@dataclass(frozen=True)
class Setting:
    """A job for `run`.

    `at_fault` is called from outside when the fault's first step is about to begin.
    """

    fault: Fault = HEALTHY
    steps: int = 90
    ranks: int = 4
    script: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    start: Callable[[job.Recorded, job.OnStep], None] = job.on_one_host
    at_fault: Callable[[], None] | None = None


@dataclass(frozen=True)
class Outcome:
    """What starprof said, and what really happened."""

    run_file: Path
    verdict: dict
    onset: int
    delays: list[tuple[int, float]]  # (step, seconds) of each injected delay of the first rank at fault
    step_seconds: list[float]  # rank 0's, by its own clock

    @property
    def blamed(self) -> list[dict]:
        return [f for f in self.verdict["findings"] if f["ranks"]]

    @property
    def delay_seconds(self) -> float:
        """Sum of the injected delays."""
        return sum(seconds for _, seconds in self.delays)

    @property
    def noise_seconds(self) -> float:
        """How much healthy steps differ (standard deviation, outliers bounded): other load shows here."""
        healthy = np.asarray(self.step_seconds[WARM_UP_STEPS : self.onset])
        return float(np.std(np.clip(healthy, None, 2 * np.median(healthy))))

    @property
    def lost_seconds(self) -> float:
        """What the job lost since the onset by its own step times, for faults that are no plain delays."""
        return true_cost_seconds(self.step_seconds, self.onset)


def starprof(*words: object) -> str:
    """Standard output of a starprof command that must succeed."""
    done = subprocess.run(job.starprof_command(*map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"starprof {words[0]} failed ({done.returncode}):\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run(tmp_path: Path, setting: Setting) -> Outcome:
    """Record the job, then ask `starprof summary --json`."""
    run_file = tmp_path / "run.starprof"
    fault = replace(setting.fault, truth=str(tmp_path / "truth-{rank}.json"))
    arguments = (f"--steps={setting.steps}", f"--log-dir={tmp_path}", *setting.script)
    recorded = job.Recorded(
        run_file,
        (str(FAULTY), str(job.TRAIN), *arguments),
        setting.ranks,
        {**fault.to_env(), "OMP_NUM_THREADS": "1", **setting.environ},
    )

    def on_step(done: int) -> None:
        if done == fault.step and setting.at_fault is not None:
            setting.at_fault()

    setting.start(recorded, on_step)
    truth = tmp_path / f"truth-{max(fault.rank, 0)}.json"
    return Outcome(
        run_file,
        json.loads(starprof("summary", run_file, "--json")),
        fault.step,
        json.loads(truth.read_text())["delays"],
        json.loads((tmp_path / "steps-0.json").read_text()),
    )


def assert_blames(outcome: Outcome, *, rank: int, causes: set[str], cost_seconds: float | tuple[float, float]) -> dict:
    """The rank is named, with the right cause, onset and cost, and nobody else is blamed; returns the finding.

    `cost_seconds` may be two values for the truth, when each has its own error.
    """
    said = json.dumps(outcome.verdict, indent=1)
    assert outcome.verdict["verdict"] == "straggler", said
    assert [f["ranks"] for f in outcome.blamed] == [[rank]], said
    finding = outcome.blamed[0]
    assert finding["cause"] in causes, said
    assert abs(finding["onset_step"] - outcome.onset) <= ONSET_TOLERANCE_STEPS, said
    truths = cost_seconds if isinstance(cost_seconds, tuple) else (cost_seconds,)
    least, most = (1 - COST_TOLERANCE) * min(truths), (1 + COST_TOLERANCE) * max(truths)
    assert least <= finding["cost_seconds"] <= most, (cost_seconds, said)
    return finding


def assert_blames_nobody(outcome: Outcome, *, verdict: str) -> None:
    """The verdict is as given, and no rank is to blame."""
    said = json.dumps(outcome.verdict, indent=1)
    assert outcome.verdict["verdict"] == verdict, said
    assert outcome.blamed == [], said
