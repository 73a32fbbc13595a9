"""The words of a verdict: headline, names of causes, numbers as people write them.

The terminal summary and the HTML report say the same sentence, because both take it from here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from starprof.model import causes
from starprof.model.verdict import Cost, Finding, Verdict

CAUSE_TITLES = {
    causes.GPU_COMPUTE: "slow GPU compute",
    causes.GPU_THERMAL: "GPU held back by heat",
    causes.GPU_POWER_CAP: "GPU held back by its power cap",
    causes.GPU_CLOCK: "low GPU clock",
    causes.GPU_ECC: "GPU memory errors",
    causes.GPU_LOST: "GPU lost or no longer answering",
    causes.GPU_MEMORY_PRESSURE: "GPU memory pressure",
    causes.GPU_FOREIGN_PROCESS: "another process on the GPU",
    causes.PCIE_LINK: "degraded PCIe link",
    causes.NVLINK: "degraded NVLink",
    causes.CPU_CONTENTION: "other processes take its CPU",
    causes.CPU_FREQUENCY: "low CPU frequency",
    causes.CGROUP_THROTTLING: "CPU quota of its control group",
    causes.AFFINITY: "too few CPUs in its affinity mask",
    causes.OVERSUBSCRIPTION: "more threads than CPUs",
    causes.NUMA: "memory on a remote NUMA node",
    causes.MEMORY_SWAP: "swapping",
    causes.HOST_PAUSE: "the whole process pauses",
    causes.HOST_BOUND: "its device waits for its host",
    causes.GC: "Python's garbage collector",
    causes.DATA_LOADING: "waits for its data loader",
    causes.STORAGE: "slow storage",
    causes.HOST_TO_DEVICE: "slow copies from host to device",
    causes.CHECKPOINT: "saves a checkpoint",
    causes.EVALUATION: "runs an evaluation",
    causes.COMPILE: "compiles the model",
    causes.LOGGING: "logging",
    causes.FORWARD_COMPUTE: "slow forward pass",
    causes.BACKWARD_COMPUTE: "slow backward pass",
    causes.OPTIMIZER: "slow optimizer step",
    causes.USER_CODE: "slow user code",
    causes.NIC_BANDWIDTH: "too little network bandwidth",
    causes.NIC_DEGRADED: "degraded network interface",
    causes.NETWORK_PATH: "slow network path",
    causes.WRONG_INTERFACE: "traffic on the wrong network interface",
    causes.SHARED_NIC: "network interface shared with others",
    causes.COMMUNICATION_VOLUME: "more communication than before",
    causes.PACKET_LOSS: "lost packets",
    causes.PFC: "network flow control not in effect",
    causes.PIPELINE_STAGE: "a pipeline stage that is too heavy",
    causes.SEQUENCE_LENGTH: "longer sequences",
    causes.BATCH_IMBALANCE: "larger batches",
    causes.PARAMETER_SERVER: "slow parameter server",
    causes.MISSING_COLLECTIVE: "a collective that was not called",
    causes.MISMATCHED_COLLECTIVE: "collectives that don't fit together",
    causes.CONFIGURATION: "how the job is launched",
    causes.UNKNOWN: "cause not known",
}
"""What a cause means, for readers who do not know its name."""

VERDICT_TITLES = {
    "none": "No straggler",
    "straggler": "Straggler",
    "rotating": "Rotating slowness",
    "structural": "Structural imbalance",
    "workload-skew": "Uneven work",
    "uniform": "Everyone is slow",
    "shared": "Shared bottleneck",
    "hang": "Hang",
    "inconclusive": "Inconclusive",
}

TIMES = "\N{MULTIPLICATION SIGN}"
UNKNOWN = "\N{EN DASH}"
"""Stands where a number was not measured."""

NAMED_AT_MOST = 6  # ranks listed one by one; beyond that their number says more


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict in three parts: `who` does what, `why` and since when, and what it `costs` ("" when unknown)."""

    who: str
    why: str
    costs: str

    @property
    def sentence(self) -> str:
        """The whole in one line."""
        told = f"{self.who}: {self.why}" if self.why else self.who
        return f"{told}; {self.costs}" if self.costs else told


def headline(
    verdict: Verdict,
    finding: Finding | None,
    total_seconds: float,
    *,
    waits: bool = True,
    course: bool = True,
    links: bool = False,
) -> Headline:
    """The verdict as one sentence.

    Args:
        verdict: the whole answer.
        finding: the finding that it is about.
        total_seconds: wall time of the steps looked at, NaN unknown.
        waits: ranks wait for each other; see `told.Told` for this and the others.
        course: there are several moments.
        links: it is about connections.
    """
    costs = _costs(verdict, total_seconds, waits=waits)
    if verdict.verdict == "straggler" and finding is not None and finding.ranks:
        which = _which_steps(finding) if course else "the mean step"
        when = since(finding) if which == "every step" else ""  # else the steps are told already
        return Headline(_blame(finding, which, waits=waits), f"{finding.cause} {when}".strip(), costs)
    if links and verdict.verdict == "straggler" and finding is not None:
        slow = f"{who(finding)} is" if len(finding.nodes) == 1 else f"{who(finding)} are" if finding.nodes else ""
        return Headline(f"{slow or 'some connections are'} slower than the others", finding.cause, costs)
    opening = {
        "none": "no rank holds the others up",
        "straggler": "one part of the job holds the others up",
        "rotating": "a different rank is late each time",
        "structural": "the work is split unevenly between roles",
        "workload-skew": "some batches carry more work than others",
        "uniform": "every rank is slow alike, nobody is a straggler",
        "shared": "all ranks wait for something they share",
        "hang": "the job stopped making progress",
        "inconclusive": "the recording does not tell who is slow",
    }[verdict.verdict]
    if finding is not None and verdict.verdict not in ("none", "inconclusive"):
        return Headline(opening, f"{finding.cause} {since(finding)}".strip(), costs)
    return Headline(opening, "", costs)


def _blame(finding: Finding, which: str, *, waits: bool) -> str:
    one = len(finding.ranks) == 1
    if not waits and finding.slowdown > 1:
        return (
            f"{who(finding)} {'needs' if one else 'need'} {times(finding.slowdown)} as long for {which} as the others"
        )
    if finding.slowdown <= 1:  # how long steps take is not known
        return f"{who(finding)} {'holds' if one else 'hold'} up the others"
    verb = "makes" if one else "make"
    return f"{who(finding)} {verb} {which} {times(finding.slowdown)} slower"


def _which_steps(finding: Finding) -> str:
    if finding.kind in ("periodic", "rotating"):
        return "some steps"
    if finding.end_step is None or finding.onset_step is None:
        return "one step" if finding.kind == "one-off" else "every step"
    return since(finding).removeprefix("in ")


def who(finding: Finding) -> str:
    """Whom the finding names: "rank 1 (node n0)", or "nobody in particular"."""
    if not finding.ranks:
        return f"node {', '.join(finding.nodes)}" if finding.nodes else "nobody in particular"
    place = f" (node{'s' if len(finding.nodes) > 1 else ''} {some(finding.nodes)})" if finding.nodes else ""
    return f"rank{'s' if len(finding.ranks) > 1 else ''} {some(finding.ranks)}{place}"


def some(names: tuple[object, ...]) -> str:
    """A short list: all of a few, the first of many with their number."""
    told = ", ".join(str(n) for n in names[:NAMED_AT_MOST])
    return told if len(names) <= NAMED_AT_MOST else f"{told}, … ({len(names)} in all)"


def since(finding: Finding) -> str:
    """When: "since step 120", "in steps 120-300", "from the first step on", or ""."""
    first, last = finding.onset_step, finding.end_step
    if first is None:
        return "" if last is None else f"until step {last}"
    if last is None:
        return f"since step {first}" if first > 0 else "from the first step on"
    return f"in step {first}" if first == last else f"in steps {first}-{last}"


def _costs(verdict: Verdict, total_seconds: float, *, waits: bool) -> str:
    if not waits:
        return f"{percent(verdict.cost.share)} of what all of them could do is lost" if verdict.cost.share > 0 else ""
    if verdict.cost.seconds <= 0:
        return ""
    of = f" of {seconds(total_seconds)}" if math.isfinite(total_seconds) else ""
    share = f" ({percent(verdict.cost.share)})" if verdict.cost.share > 0 else ""
    return f"costs {seconds(verdict.cost.seconds)}{of}{share}"


def certainty(confidence: float) -> str:
    """Confidence in a word that stands beside its number."""
    for least, word in ((0.95, "very sure"), (0.8, "sure"), (0.6, "likely")):
        if confidence >= least:
            return word
    return "a guess"


def money(cost: Cost) -> str:
    """Cost in money with the GPU hours it stands for: "36.63 (18.3 GPU hours)"; empty without a price."""
    if cost.money is None:
        return ""
    digits = 2 if abs(cost.money) >= 1 or cost.money == 0 else 4
    return f"{cost.money:,.{digits}f} ({cost.gpu_hours:.3g} GPU hours)"


def gain(finding: Finding, total_seconds: float, *, waits: bool = True) -> str:
    """What fixing the finding is expected to bring, from its own cost."""
    if not waits and finding.slowdown > 1 and finding.ranks:
        return f"{'its' if len(finding.ranks) == 1 else 'their'} own steps get {times(finding.slowdown)} faster"
    if finding.cost_seconds <= 0:
        return ""
    saved = f"the job saves {seconds(finding.cost_seconds)}"
    if math.isfinite(total_seconds) and total_seconds > 0:
        saved += f" of {seconds(total_seconds)} ({percent(finding.cost_seconds / total_seconds)})"
    return f"{saved}; the steps concerned get {times(finding.slowdown)} faster" if finding.slowdown > 1 else saved


def sentence(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]


def times(ratio: float) -> str:
    """A ratio, with the multiplication sign: 1.42x."""
    return f"{ratio:.2f}{TIMES}" if ratio < 10 else f"{ratio:.0f}{TIMES}"


def percent(share: float) -> str:
    """A share of 1 as "18 %"; a small one keeps two digits."""
    value = 100 * share
    if value == 0 or not math.isfinite(value):
        return "0 %" if value == 0 else UNKNOWN
    return f"{value:.0f} %" if abs(value) >= 10 else f"{value:.2g} %"


def seconds(value: float) -> str:
    """Wall time with the unit that suits it: "420 ms", "11.1 s", "5 min 20 s", "2 h 05 min"."""
    if not math.isfinite(value):
        return UNKNOWN
    if abs(value) < 1:
        return milliseconds(1e6 * value)
    if abs(value) < 99.95:
        return f"{value:.1f} s" if value % 1 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def milliseconds(us: float) -> str:
    """Microseconds as milliseconds with three digits: "0.42 ms", "48.2 ms", "204 ms"; a dash for not measured."""
    if not math.isfinite(us):
        return UNKNOWN
    ms = us / 1e3
    digits = 0 if abs(ms) >= 100 else 1 if abs(ms) >= 10 else 2
    return f"{round(ms, digits) + 0.0:,.{digits}f} ms"


def mebibytes(count: float) -> str:
    """Bytes as MiB or GiB."""
    if not math.isfinite(count):
        return UNKNOWN
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def file_size(count: int) -> str:
    """Bytes in decimal units, as file managers show them: "840 kB", "1.2 MB"."""
    return f"{count / 1e6:.1f} MB" if count >= 999_500 else f"{count / 1e3:.0f} kB"
