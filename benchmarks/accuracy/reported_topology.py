"""Reported faults of places and devices: one rail of several, one switch, one socket, GPUs that the driver reports."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from inputs import Report
from truth import answer

from starprof.analysis.synthetic import Slow, SyntheticRun, Trouble
from starprof.analysis.synthetic.devices import gpu_uuid
from starprof.analysis.synthetic.rails import Railed
from starprof.importers.base import run_of
from starprof.importers.source import Source
from starprof.model.columns import row
from starprof.model.rundata import RankInfo, RunData
from starprof.model.tables.job import EVENT
from starprof.model.tables.trace import COLLECTIVE

SLOWER = Trouble((0,), {"transfer": 12_500.0}, start=80)
"""A reduction of 4 ms takes four times as long, as at a quarter of the rate."""

SLOW_GPU = Slow("backward", (3,), us=30_000, start=120)
EIGHT = SyntheticRun(32, 160, nodes=4, gpus=True, faults=(SLOWER,), rate_hz=4.0)
DEGRADED = Railed(EIGHT, slow=(2, 5), start=80, speed_mbit=100_000.0)
LEAVES = {node: ("spine", f"leaf{node // 2}") for node in range(4)}


def one_slow_rail_of_eight() -> RunData:
    """One of a node's eight ports negotiates a quarter of its rate."""
    return DEGRADED.data()


def one_slow_rail_of_eight_whose_place_was_not_recorded() -> RunData:
    """The same, and nothing tells which rank uses which port."""
    return replace(DEGRADED, placed=False).data()


def one_slow_rail_that_explains_a_part_only() -> RunData:
    """The reduction takes eight times as long at a quarter of one port's rate: there must be more to it."""
    return replace(DEGRADED, run=replace(EIGHT, faults=(replace(SLOWER, adds={"transfer": 30_000.0}),))).data()


def one_slow_rail_that_the_environment_assigns() -> RunData:
    """The launcher gives each rank its own port, another one than the nearest."""
    chosen = {rank: {"NCCL_IB_HCA": f"=mlx5_{7 - rank % 8}"} for rank in range(32)}
    return replace(DEGRADED, chosen=chosen).data()


def one_rail_with_errors() -> RunData:
    """A port at full rate counts symbol errors from a moment on."""
    return replace(DEGRADED, speed_mbit=None, errors_per_s=60.0).data()


def one_slow_ethernet_of_four() -> RunData:
    """Sockets on one of four interfaces queue; no counter of the interface says why."""
    run = replace(EIGHT, ranks=16)
    return Railed(run, rails=4, rdma=False, slow=(1, 3), start=80).data()


def a_rail_that_is_always_slow_and_costs_nothing() -> RunData:
    """A port at half its rate from the first step on, and reductions as quick as ever."""
    return replace(DEGRADED, run=replace(EIGHT, faults=()), start=0).data()


def all_ranks_of_one_socket() -> RunData:
    """Four of eight ranks, those of one NUMA node, compute longer."""
    bound = {rank: "0-3" if rank % 8 < 4 else "4-7" for rank in range(32)}
    slow = Slow("forward", (12, 13, 14, 15), us=25_000, start=80)
    return Railed(replace(EIGHT, numa_nodes=2, cpu_lists=bound, faults=(slow,))).data()


def all_nodes_below_one_leaf_switch() -> RunData:
    """Both nodes below one leaf switch are late, those below the other are not."""
    slow = Slow("data_wait", tuple(range(16)), us=40_000, start=80)
    return Railed(replace(EIGHT, faults=(slow,)), above=LEAVES).data()


def two_elements_that_hold_the_same_ranks() -> RunData:
    """The two GPUs of a NUMA node have one port: either may be what slows them."""
    slow = Slow("backward", (2, 3), us=25_000, start=80)
    run = SyntheticRun(16, 160, nodes=4, gpus=True, numa_nodes=2, faults=(slow,), rate_hz=4.0)
    return Railed(run, rails=2).data()


def memory_errors_that_the_driver_reports() -> RunData:
    """XID 94 on the GPU that becomes slow; the volatile counters were reset and show nothing."""
    return _with_xid(SyntheticRun(4, 240, gpus=True, faults=(SLOW_GPU,)), 94, 3, 120)


def a_program_s_fault_on_another_gpu() -> RunData:
    """XID 31 of a healthy rank while another one is slow."""
    return _with_xid(SyntheticRun(4, 240, gpus=True, faults=(SLOW_GPU,)), 31, 1, 120)


def an_xid_without_slowness() -> RunData:
    """A row was remapped, and nothing is slower for it."""
    return _with_xid(SyntheticRun(4, 240, gpus=True), 63, 2, 120)


def an_nvlink_error_that_slows_the_reduction() -> RunData:
    """XID 74 of one GPU, and all wait longer in the reduction from then on."""
    run = SyntheticRun(8, 240, gpus=True, faults=(Trouble((5,), {"transfer": 20_000.0}, start=120),))
    return _with_xid(run, 74, 5, 120)


def a_gpu_that_fell_off_the_bus_in_a_stopped_job() -> RunData:
    """Three ranks wait for one whose GPU is gone."""
    return _stopped(79, pid=4001)


def a_gpu_lost_on_a_host_with_two_ranks() -> RunData:
    """The same where the kernel's line names no process: whose GPU it is can't be told."""
    return _stopped(79, pid=None)


def _with_xid(recipe: SyntheticRun, number: int, rank: int, step: int) -> RunData:
    data = recipe.data()
    time = int(data.steps.start_mono_ns[rank][step])
    told = row(EVENT, node=0, mono_ns=time, kind="xid", value=number, detail=f"{gpu_uuid(rank)}: XID {number}")
    return replace(data, events=pd.DataFrame([told], columns=list(EVENT.names)))


def _stopped(number: int, pid: int | None) -> RunData:
    """Four ranks on two hosts; rank 3 did not come to call 2."""
    calls = [(rank, 1, "completed") for rank in range(4)] + [(rank, 2, "started") for rank in range(3)]
    rows = [
        row(COLLECTIVE, rank=rank, group_name="0", sequence=n, name="all_reduce", state=state, bytes=4096, ranks="0-3")
        for rank, n, state in calls
    ]
    detail = "GPU 0000:18:00" + (f", process {pid}" if pid is not None else "")
    event = row(EVENT, node=1, kind="xid", value=number, detail=detail)
    return run_of(
        "nccl-flight-recorder",
        [Source("dumps", None)],  # type: ignore[arg-type]
        ranks=[RankInfo(rank, rank // 2, f"host{rank // 2}", pid=4000 + rank - 2) for rank in range(4)],
        collectives=pd.DataFrame(rows, columns=list(COLLECTIVE.names)),
        events=pd.DataFrame([event], columns=list(EVENT.names)),
    )


REPORTS: tuple[Report, ...] = (
    (
        one_slow_rail_of_eight,
        answer("straggler", ranks=(21,), causes=("nic-degraded",), onset=80, nodes=("node2",), says=("mlx5_5/1",)),
    ),
    (
        one_slow_rail_of_eight_whose_place_was_not_recorded,
        answer(
            "straggler",
            tolerated=frozenset(range(16, 24)),
            causes=("nic-degraded",),
            nodes=("node2",),
            says=("serves which rank is not known", "mlx5_5/1"),
        ),
    ),
    (
        one_slow_rail_that_explains_a_part_only,
        answer("inconclusive", causes=("unknown",), onset=80, says=("mlx5_5/1", "covers")),
    ),
    (one_slow_rail_that_the_environment_assigns, answer("straggler", ranks=(18,), causes=("nic-degraded",), onset=80)),
    (one_rail_with_errors, answer("straggler", ranks=(21,), causes=("nic-degraded",), onset=80, says=("mlx5_5/1",))),
    (one_slow_ethernet_of_four, answer("straggler", ranks=(7,), causes=("nic-bandwidth",), onset=80, says=("eth3",))),
    (a_rail_that_is_always_slow_and_costs_nothing, answer("none")),
    (
        all_ranks_of_one_socket,
        answer("straggler", ranks=(12, 13, 14, 15), onset=80, says=("all 4 ranks of NUMA node 1 of node1",)),
    ),
    (
        all_nodes_below_one_leaf_switch,
        answer("straggler", ranks=tuple(range(16)), onset=80, says=("all 16 ranks of switch leaf0",)),
    ),
    (two_elements_that_hold_the_same_ranks, answer("straggler", ranks=(2, 3), onset=80, says=("equally well",))),
    (memory_errors_that_the_driver_reports, answer("straggler", ranks=(3,), causes=("gpu-ecc",), onset=120)),
    (
        a_program_s_fault_on_another_gpu,
        answer("straggler", ranks=(3,), causes=("backward-compute", "gpu-compute"), onset=120, never=("XID",)),
    ),
    (an_xid_without_slowness, answer("none")),
    (an_nvlink_error_that_slows_the_reduction, answer("straggler", ranks=(5,), causes=("nvlink",), onset=120)),
    (
        a_gpu_that_fell_off_the_bus_in_a_stopped_job,
        answer("hang", ranks=(3,), causes=("gpu-lost",), says=("fell off the bus",)),
    ),
    (
        a_gpu_lost_on_a_host_with_two_ranks,
        answer("hang", ranks=(3,), causes=("missing-collective",), says=("whose GPU", "host1")),
    ),
)
