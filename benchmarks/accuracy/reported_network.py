"""Reported faults of networks: whose port, which transport, and what must not be claimed."""

from __future__ import annotations

import numpy as np
import pandas as pd
from inputs import Report, with_columns, with_samples
from truth import answer

from starprof.analysis.synthetic import SyntheticRun, Trouble
from starprof.model.rundata import RunData

ALL = (0, 1, 2, 3)
SLOWER = {"transfer": 30_000.0}
FALLBACK = Trouble(
    ALL,
    SLOWER,
    stops=("nic_sample#2.tx_bytes", "nic_sample#2.rx_bytes"),
    grows={"nic_sample.tx_bytes": 30e6, "nic_sample.rx_bytes": 30e6},
    start=120,
)


def sockets_instead_of_infiniband() -> RunData:
    """All reductions are slow alike: the InfiniBand ports move nothing, Ethernet carries it all."""
    return SyntheticRun(4, 300, nodes=4, infiniband=True, faults=(FALLBACK,)).data()


def sockets_from_the_first_step_on() -> RunData:
    """The same job that never used InfiniBand: 50 ms would do, the reduction takes 370 ms."""
    fallback = Trouble(
        ALL, {}, stops=FALLBACK.stops, grows={"nic_sample.tx_bytes": 900e6, "nic_sample.rx_bytes": 900e6}
    )
    return SyntheticRun(4, 300, nodes=4, infiniband=True, transfer_us=370_000.0, faults=(fallback,)).data()


def sends_through_the_slow_port() -> RunData:
    """Two nodes of three ranks with a 10 Gbit/s and a 1 Gbit/s port: one receives on the fast, sends on the slow."""
    data = SyntheticRun(6, 300, nodes=2, transfer_us=160_000.0).data()
    samples, names = data.samples["nic_sample"], data.samples["nic"]
    seconds = (samples["mono_ns"] - samples["mono_ns"].min()) / 1e9
    odd = samples["node"] == 1
    fast = samples.assign(
        tx_bytes=np.where(odd, seconds * 2e3, seconds * 118e6), rx_bytes=seconds * 118e6, speed_mbit=10_000.0
    )
    slow = samples.assign(nic=5, tx_bytes=np.where(odd, seconds * 118e6, 0.0), rx_bytes=0.0, speed_mbit=1_000.0)
    both = names.assign(nic=5, name="eno1", addresses=[f"10.0.0.{n + 101}" for n in names["node"]])
    return with_samples(
        data,
        nic_sample=pd.concat([fast, slow], ignore_index=True),
        nic=pd.concat([names, both], ignore_index=True),
    )


def lossless_class_unused_after_a_reboot() -> RunData:
    """RDMA traffic runs in priority 0, where nothing is paused."""
    unused = Trouble(
        ALL,
        SLOWER,
        stops=("nic_sample.rx_other_prio_packets",),
        grows={"nic_sample.rx_prio0_packets": 40_000.0},
        start=120,
    )
    return SyntheticRun(4, 300, nodes=4, infiniband=True, faults=(unused,)).data()


def slow_network_whose_drop_counters_stand_still() -> RunData:
    """The reduction is slow, and no counter says why: drops must not be claimed."""
    return SyntheticRun(4, 300, nodes=4, faults=(Trouble(ALL, SLOWER, start=120),)).data()


def another_all_reduce_in_every_step() -> RunData:
    """From a step on the program reduces 128 MB more: one collective and 64 times the bytes, on all ranks."""
    more = Trouble(
        ALL,
        {"transfer": 120_000.0},
        grows={"nic_sample.tx_bytes": 700e6, "nic_sample.rx_bytes": 700e6, "tcp_sample.acked_bytes": 230e6},
        start=150,
    )
    data = SyntheticRun(4, 300, nodes=4, faults=(more,)).data()
    collectives = np.zeros((4, 300))
    collectives[:, 150:] = 1.0
    return with_columns(data, collectives=collectives)


def another_all_reduce_on_one_host() -> RunData:
    """The same on one machine without a network: only the count of collectives tells."""
    data = SyntheticRun(4, 300, faults=(Trouble(ALL, {"transfer": 90_000.0}, start=150),), counters=False).data()
    collectives = np.full((4, 300), 2.0)
    collectives[:, 150:] = 4.0
    return with_columns(data, collectives=collectives)


def ports_at_their_line_rate() -> RunData:
    """From a step on the InfiniBand ports of all nodes carry 6.46 GB/s of their 56 Gbit/s: the job fills them."""
    data = SyntheticRun(4, 300, nodes=4, infiniband=True, faults=(Trouble(ALL, SLOWER, start=120),)).data()
    samples = data.samples["nic_sample"].copy()
    port = samples["nic"] == 2
    began = float(data.steps.start_mono_ns[0, 120])
    seconds = np.clip(samples["mono_ns"] - began, 0.0, None) / 1e9
    for column in ("tx_bytes", "rx_bytes"):
        samples.loc[port, column] += seconds[port] * (4 * 1.6147e9 - 40e6)
    samples.loc[port, "speed_mbit"] = 56_000.0
    return with_samples(data, nic_sample=samples)


def two_ranks_behind_one_full_port() -> RunData:
    """Two ranks on each of two nodes fill its 10 Gbit/s port together: the node sends 9.9 Gbit/s, not twice that."""
    full = Trouble(ALL, SLOWER, grows={"nic_sample.tx_bytes": 1.2e9, "tcp_sample.acked_bytes": 0.25e9}, start=120)
    return SyntheticRun(4, 300, nodes=2, faults=(full,)).data()


REPORTS: tuple[Report, ...] = (
    (
        sockets_instead_of_infiniband,
        answer("uniform", causes=("wrong-interface",), onset=120, says=("fell back to tcp sockets", "net/socket")),
    ),
    (
        sockets_from_the_first_step_on,
        answer("uniform", causes=("wrong-interface",), onset=0, says=("moved no bytes", "nccl_ib_disable")),
    ),
    (
        sends_through_the_slow_port,
        answer(
            "straggler",
            ranks=(3, 4, 5),
            causes=("wrong-interface",),
            nodes=("node1",),
            says=("eno1", "944 mbit/s", "other end", "different subnets"),
        ),
    ),
    (
        lossless_class_unused_after_a_reboot,
        answer(
            "uniform", causes=("pfc",), onset=120, says=("priority 0", "lossless class is unused", "survive reboots")
        ),
    ),
    (
        slow_network_whose_drop_counters_stand_still,
        answer(
            "inconclusive",
            causes=("unknown",),
            onset=120,
            says=("measure the bandwidth of every pair",),
            never=("drop", "loss"),
        ),
    ),
    (
        another_all_reduce_in_every_step,
        answer(
            "uniform",
            causes=("communication-volume",),
            onset=150,
            says=("collectives per step", "bytes"),
            never=("cable",),
        ),
    ),
    (
        another_all_reduce_on_one_host,
        answer("uniform", causes=("communication-volume",), onset=150, says=("4 collectives per step",)),
    ),
    (
        two_ranks_behind_one_full_port,
        answer("uniform", causes=("nic-bandwidth",), onset=120, says=("9.9 gbit/s",), never=("19.",)),
    ),
    (
        ports_at_their_line_rate,
        answer(
            "uniform",
            causes=("nic-bandwidth",),
            onset=120,
            says=("51.6 gbit/s|51.7 gbit/s", "of all 4 nodes"),
            never=("206",),
        ),
    ),
)
