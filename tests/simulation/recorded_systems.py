"""Two sets of public measurements, the simulator fitted to a part of each, and what it says about the rest.

CM-DARE (Apache-2.0): steps a second of asynchronous training with 1 to 8 workers and 1 or 2 parameter servers.
Sync-Switch (Apache-2.0): synchronous and asynchronous training of 8 and 16 workers, with and without delayed nodes.
"""

import csv
import functools
import io
import re
import tarfile
from datetime import datetime

import numpy as np

from starprof.simulation import Mode, NoiseScale, ParameterServer, Steady, Until, Worker, simulate

CV = 0.1
"""Of workers' own times, which the sets don't tell: not fitted."""

FITTED = 4
"""Rows of few workers that a server is fitted to."""


def texts(archive):
    """Name and text of each file."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile():
                yield member.name, tar.extractfile(member).read().decode(errors="replace")


@functools.cache
def cmdare(folder):
    """Median steps a second, by (set, model, workers)."""
    rates = {}
    for name, text in texts(folder / "cmdare_speed_vs_workers.tar.gz"):
        found = re.search(r"speed_and_cluster_size/(\w+)/(res15|res32|shakesm|shakes?b).*worker(\d)/", name)
        if found:
            kind, model, workers = found[1], found[2].replace("shakesb", "shakeb"), int(found[3])
            values = [float(row["Value"]) for row in csv.DictReader(io.StringIO(text)) if row["Value"]]
            rates[kind, model, workers] = float(np.median(values))
    return rates


def steps_per_s(own_s, service_s, workers, mode="asgd", servers=1, updates=300):
    """Of workers whose gradients each take a server so long, one at a time."""
    staff = [Worker(index, Steady(own_s, CV)) for index in range(workers)]
    exchange = ParameterServer(tuple(f"ps{i}" for i in range(servers)), push_cpu_s=service_s, threads=1.0)
    return simulate(Mode(mode), staff, NoiseScale(), until=Until(updates=updates), exchange=exchange).updates_per_s


def alone_s(rates, kind, model):
    """Time of an iteration without company: rows of one and two workers."""
    return float(np.mean([workers / rates[kind, model, workers] for workers in (1, 2)]))


@functools.cache
def fitted_server(folder, model):
    """Own time on P100 and service time, in seconds, that explain the rows of few workers best."""
    rates, kind = cmdare(folder), "p100"
    alone = alone_s(rates, kind, model)

    def miss(service_s):
        told = [steps_per_s(alone - service_s, service_s, n) / rates[kind, model, n] for n in range(1, FITTED + 1)]
        return float(np.sum(np.log(told) ** 2))

    service_s = min((alone * share for share in np.linspace(0.1, 0.4, 16)), key=miss)
    return alone - service_s, service_s


def cmdare_predictions(folder, model):
    """Predicted over measured, of rows that were not fitted: (set, workers) to ratio."""
    rates = cmdare(folder)
    own_s, service_s = fitted_server(folder, model)
    ratios = {}
    for n in range(FITTED + 1, 9):
        ratios["p100", n] = steps_per_s(own_s, service_s, n) / rates["p100", model, n]
    for kind, servers in (("k80", 1), ("p100ps2", 2)):
        # Other workers, or half of the work for each server; rows of 1 and 2 workers give the own time.
        other_s = alone_s(rates, kind, model) - service_s / servers
        for n in range(3, 9):
            ratios[kind, n] = steps_per_s(other_s, service_s, n, servers=servers) / rates[kind, model, n]
    return ratios


def sync_switch_jobs(folder):
    """(name, mode, steps, seconds) of each job of the logs."""
    pattern = re.compile(
        r"Job name: (\S+), SGD: (\w+)\s+Started training at:\s+(.*?)\s*\nEnded training at:\s+(.*?), (\d+) steps"
    )
    jobs = []
    for name, text in texts(folder / "syncswitch_data.tar.gz"):
        if name.endswith("_job.txt"):
            for found in pattern.finditer(text):
                begin, end = (datetime.fromisoformat(found[group]) for group in (3, 4))
                jobs.append((found[1], found[2], int(found[5]), (end - begin).total_seconds()))
    return jobs


def step_s(jobs, pattern, mode, before=0):
    """Median time of a step; asynchronous parts go on counting after the synchronous ones."""
    times = [
        seconds / (steps - before) for name, kind, steps, seconds in jobs if kind == mode and re.match(pattern, name)
    ]
    return float(np.median(times))


def twice_the_workers(jobs):
    """ResNet-32 on 16 workers from 8: (what, predicted over measured).

    Asynchronous steps give the workers' own time, synchronous ones the server's work for each gradient it adds up.
    """
    own_s = 8 * step_s(jobs, "5050_run1$", "ASP", before=4_000)
    eight_s, adding_s = step_s(jobs, "5050_run1$", "BSP"), 0.0
    for _ in range(4):
        adding_s += (eight_s - 1 / steps_per_s(own_s, adding_s, 8, mode="ssgd", updates=50)) / 8
    asynchronous = 1 / steps_per_s(own_s, 1e-6, 16)
    synchronous = 1 / steps_per_s(own_s, adding_s, 16, mode="ssgd", updates=50)
    measured = step_s(jobs, "cluster_16_5050", "ASP", before=2_000), step_s(jobs, "cluster_16_5050", "BSP")
    return {
        "ASP step": asynchronous / measured[0],
        "BSP step": synchronous / measured[1],
        "BSP over ASP": synchronous / asynchronous / (measured[1] / measured[0]),
    }


HYBRIDS = {"cifar100_5050": 8_000, "cifar100_2575": 4_000, "cifar100_1288": 2_000, "cifar100_694": 1_000}
"""Jobs that begin synchronously, and for how many steps."""

SCALE = 50
"""Fewer steps in the simulation."""


def hybrids(jobs):
    """ResNet-50 that goes from BSP to ASP, from the pure ones: predicted over measured duration of each."""
    whole = step_s(jobs, r"cifar100_(bsp_)?run\d$", "BSP")
    single = step_s(jobs, r"cifar100_asp_run\d$", "ASP")
    # One server explains both: own + 8 services a synchronous step, own + 1 an asynchronous iteration.
    service_s = (whole - 8 * single) / 7
    own_s = whole - 8 * service_s
    staff = [Worker(index, Steady(own_s)) for index in range(8)]
    exchange = ParameterServer(("ps",), push_cpu_s=service_s, threads=1.0)
    ratios = {}
    for name, synchronous in HYBRIDS.items():
        total = sum(step for n, kind, step, _ in jobs if kind == "ASP" and n == f"{name}_run2")
        updates = synchronous // SCALE + (total - synchronous) // SCALE
        mode = Mode("sync-switch", {"switch_at": synchronous // SCALE})
        history = simulate(mode, staff, NoiseScale(), until=Until(updates=updates), exchange=exchange)
        measured = sum(seconds for n, _, _, seconds in jobs if n == f"{name}_run2")
        ratios[name] = history.end_s * SCALE / measured
    return ratios


DELAYED = re.compile(r"straggler/(a?)sync_baseline(?:_(\d+)lat_(\d)strag)?/loss\.csv$")


def delayed_speeds(folder):
    """Steps a second of 8 workers, by (mode, delay in ms, delayed nodes)."""
    speeds = {}
    for name, text in texts(folder / "syncswitch_data.tar.gz"):
        found = DELAYED.search(name)
        if found:
            rows = [r for r in csv.DictReader(io.StringIO(text)) if r["Wall time"] and r["Step"]]
            steps, times = ([float(rows[i][key]) for i in (0, -1)] for key in ("Step", "Wall time"))
            mode = "asgd" if found[1] else "ssgd"
            speeds[mode, int(found[2] or 0), int(found[3] or 0)] = (steps[1] - steps[0]) / (times[1] - times[0])
    return speeds


def two_delayed_nodes(speeds):
    """From none and one: predicted over measured speed.

    Every node holds a part of the parameters there, so that a delayed node costs all workers the same time.
    """
    ratios = {}
    for mode, gradients in (("ssgd", 1), ("asgd", 8)):
        for delay_ms in (10, 30):
            none, one = (gradients / speeds[mode, d, n] for d, n in ((0, 0), (delay_ms, 1)))
            staff = [Worker(index, Steady(none + 2 * (one - none))) for index in range(8)]
            told = simulate(Mode(mode), staff, NoiseScale(), until=Until(updates=200)).updates_per_s
            ratios[mode, delay_ms] = told / speeds[mode, delay_ms, 2]
    return ratios
