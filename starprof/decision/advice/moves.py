"""What removes the cause of a finding: one entry a cause, with commands or code that do it, if there are any."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starprof.analysis.counters import Counters, numbers
from starprof.decision.advice.result import Kind
from starprof.model import causes
from starprof.model.rundata import RankInfo, RunData
from starprof.model.verdict import Finding

RANKS_AT_MOST = 4
"""Commands are written out for so many ranks or nodes."""
LEAD = 0.5
CHECKPOINTS = "torch.distributed.checkpoint.async_save(state, checkpoint_id=path)"


@dataclass(frozen=True)
class Scene:
    """A run, and whom a finding is about."""

    run: RunData
    counters: Counters
    finding: Finding

    @property
    def ranks(self) -> list[RankInfo]:
        """The named ranks, the first few."""
        return [info for info in self.run.ranks if info.rank in self.finding.ranks][:RANKS_AT_MOST]

    @property
    def hosts(self) -> list[str]:
        """Their nodes, or those that the finding names."""
        hosts = [info.host for info in self.ranks if info.host] or list(self.finding.nodes)
        return list(dict.fromkeys(hosts))[:RANKS_AT_MOST]

    def cores_a_rank(self, info: RankInfo) -> int:
        """Cores of its node divided by the ranks on it; 0 when that is not known."""
        cores = self.counters.cores.get(info.node, 0)
        here = sum(other.node == info.node for other in self.run.ranks)
        return max(1, cores // here) if cores else 0


Commands = Callable[[Scene], list[str]]


@dataclass(frozen=True, slots=True)
class Move:
    """What is done about a cause.

    Attributes:
        kind: what it changes.
        what: in a few words.
        at_once: it can be done while the job runs.
        commands: that do it, made for a finding.
        cures: how far it removes the cause; less than 1 where it has to be found out first what to change.
    """

    kind: Kind
    what: str
    at_once: bool = False
    commands: Commands = lambda _scene: []
    cures: float = 1.0


def _quota(scene: Scene) -> list[str]:
    """Take the CPU quota off the groups of the ranks that have one."""
    lines: dict[str, None] = {}
    for info in scene.ranks:
        named = scene.counters.series("cgroup", ("node", "rank")).get((float(info.node), float(info.rank)))
        if named is None:
            continue
        for group, path, version in zip(named["cgroup"], named["path"], named["version"], strict=True):
            rows = scene.counters.series("cgroup_sample", ("node", "cgroup")).get((float(info.node), float(group)))
            if rows is None or not (numbers(rows, "quota_us") > 0).any():
                continue
            old = version == 1
            file = f"/sys/fs/cgroup/cpu{path}/cpu.cfs_quota_us" if old else f"/sys/fs/cgroup{path}/cpu.max"
            lines[f"echo {'-1' if old else 'max'} > {shlex.quote(file)}"] = None
    return list(lines)


def _mask(scene: Scene) -> list[str]:
    """Let the ranks use all cores of their node."""
    known = [(info.pid, scene.counters.cores.get(info.node, 0)) for info in scene.ranks]
    return [f"taskset -apc 0-{cores - 1} {pid}" for pid, cores in known if pid and cores]


def _threads(scene: Scene) -> list[str]:
    counts = {scene.cores_a_rank(info) for info in scene.ranks or scene.run.ranks} - {0}
    return [f"export OMP_NUM_THREADS={min(counts)}"] if counts else []


def _loader(scene: Scene) -> list[str]:
    cores = {scene.cores_a_rank(info) for info in scene.ranks or scene.run.ranks} - {0}
    workers = max(2, min(cores) - 1) if cores else 4
    return [f"DataLoader(..., num_workers={workers}, prefetch_factor=4, persistent_workers=True)"]


def _gpu(scene: Scene) -> list[str]:
    gpus = [info.gpu_uuid for info in scene.ranks if info.gpu_uuid]
    return [f"nvidia-smi -i {shlex.quote(gpu)} -q -d PERFORMANCE,TEMPERATURE,POWER,CLOCK,ECC" for gpu in gpus]


def _drain(scene: Scene) -> list[str]:
    """Look at the GPU, then keep the job off the node."""
    return [*_gpu(scene), *(f"sbatch --exclude={shlex.quote(host)}" for host in scene.hosts)]


def _line(*lines: str) -> Commands:
    return lambda _scene: list(lines)


_DRAIN = Move("placement", "drain the node, and start without it", commands=_drain)
_LINK = Move("network", "repair the link, or keep the job off it")
_SAVE_LESS = Move("program", "take it off the training loop, or do it less often")

MOVES: Mapping[str, Move] = {
    causes.CGROUP_THROTTLING: Move("resource", "raise or remove the CPU quota", at_once=True, commands=_quota),
    causes.AFFINITY: Move("resource", "widen the affinity mask", at_once=True, commands=_mask),
    causes.CPU_CONTENTION: Move("resource", "move or stop what else runs on its cores", at_once=True),
    causes.OVERSUBSCRIPTION: Move("resource", "use no more threads than cores", commands=_threads),
    causes.CPU_FREQUENCY: Move("resource", "let its cores run at full frequency", at_once=True),
    causes.NUMA: Move("placement", "start each rank beside its memory and its GPU"),
    causes.MEMORY_SWAP: Move("resource", "give it more memory, or use less"),
    causes.HOST_PAUSE: Move("resource", "find what stops the process"),
    causes.HOST_BOUND: Move("program", "give the device longer work at a time"),
    causes.GPU_COMPUTE: _DRAIN,
    causes.GPU_THERMAL: _DRAIN,
    causes.GPU_POWER_CAP: Move("resource", "raise the power cap, or drain the node", at_once=True, commands=_gpu),
    causes.GPU_CLOCK: Move(
        "resource", "set the clocks as on its peers, or drain the node", at_once=True, commands=_gpu
    ),
    causes.GPU_ECC: _DRAIN,
    causes.GPU_LOST: _DRAIN,
    causes.GPU_MEMORY_PRESSURE: Move("program", "use less GPU memory"),
    causes.GPU_FOREIGN_PROCESS: Move("resource", "stop the other process on the GPU", at_once=True, commands=_gpu),
    causes.PCIE_LINK: _DRAIN,
    causes.NVLINK: _DRAIN,
    causes.NIC_DEGRADED: _LINK,
    causes.NIC_BANDWIDTH: Move("network", "communicate less, or pace and move what shares the interface"),
    causes.SHARED_NIC: Move("network", "pace or move what shares the interface", at_once=True),
    causes.NETWORK_PATH: _LINK,
    causes.PACKET_LOSS: _LINK,
    causes.PFC: Move("network", "set flow control again"),
    causes.WRONG_INTERFACE: Move("network", "name the fast interface"),
    causes.COMMUNICATION_VOLUME: Move("program", "communicate less"),
    causes.DATA_LOADING: Move("program", "give the loader more workers and prefetching", commands=_loader),
    causes.STORAGE: Move("program", "read from a faster or less shared place, or cache", commands=_loader),
    causes.HOST_TO_DEVICE: Move(
        "program",
        "copy from pinned memory, ahead of time",
        commands=_line("DataLoader(..., pin_memory=True)", "batch = batch.to(device, non_blocking=True)"),
    ),
    causes.GC: Move(
        "program",
        "collect garbage on all ranks in the same step",
        commands=_line("gc.disable()", "if step % 500 == 0: gc.collect()"),
    ),
    causes.CHECKPOINT: Move("program", "save asynchronously, or less often", commands=_line(CHECKPOINTS)),
    causes.EVALUATION: _SAVE_LESS,
    causes.LOGGING: _SAVE_LESS,
    causes.COMPILE: Move("program", "warm up with all shapes before training"),
    causes.BATCH_IMBALANCE: Move("program", "split the batches evenly"),
    causes.SEQUENCE_LENGTH: Move("program", "deal out sequences by their length"),
    causes.PIPELINE_STAGE: Move("program", "move layers to the other stages"),
    causes.PARAMETER_SERVER: Move("placement", "shard the parameter server, or move it to a node with room"),
    causes.MISSING_COLLECTIVE: Move("program", "make all ranks call the same collectives"),
    causes.MISMATCHED_COLLECTIVE: Move("program", "make all ranks call the same collectives"),
    causes.CONFIGURATION: Move("program", "start the job as the finding says"),
    causes.FORWARD_COMPUTE: Move("program", "find out what only its forward pass does", cures=LEAD),
    causes.BACKWARD_COMPUTE: Move("program", "find out what only its backward pass does", cures=LEAD),
    causes.OPTIMIZER: Move("program", "find out what only its optimizer step does", cures=LEAD),
    causes.USER_CODE: Move("program", "find out what only its own code does", cures=LEAD),
}
"""By cause. Of an unknown one the finding says what to record."""
