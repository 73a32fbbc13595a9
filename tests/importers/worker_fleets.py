"""Times of workers for tests: fleets that do not wait for each other, and files that tell them."""

from pathlib import Path

import numpy as np

from starprof.analysis import diagnose
from starprof.importers.load import load


def fleet(workers=8, samples=200, *, base=400.0, spread=0.03, cv=0.04, memory=0.0, seed=0):
    """Own times of healthy workers, shape (workers, samples).

    Args:
        workers: number of them.
        samples: of each.
        base: their typical time.
        spread: standard deviation of their constant differences.
        cv: noise from sample to sample.
        memory: correlation of that noise from one sample to the next.
        seed: of everything random.
    """
    rng = np.random.default_rng([31, seed])
    noise = rng.standard_normal((workers, samples))
    for k in range(1, samples):
        noise[:, k] = memory * noise[:, k - 1] + np.sqrt(1 - memory**2) * noise[:, k]
    return base * np.exp(spread * rng.standard_normal(workers)[:, None] + cv * noise)


def synchronous(workers=8, steps=200, seed=0, jitter=0.002):
    """Wall times of workers that wait for each other in every step."""
    rng = np.random.default_rng([32, seed])
    common = 300.0 * np.exp(0.1 * rng.standard_normal(steps))
    return common * (1.0 + jitter * rng.standard_normal((workers, steps)))


def long_table(values, *, header="worker,time,batch_time", every=10.0, first=1.0, names=None, separator=","):
    """A table with one row per worker and sample, in the order of the samples; NaN is left out."""
    names = names or [str(w) for w in range(len(values))]
    lines = [header.replace(",", separator)]
    lines += [
        separator.join((names[w], f"{first + every * k:g}", f"{values[w, k]:.6g}"))
        for k in range(values.shape[1])
        for w in range(len(values))
        if not np.isnan(values[w, k])
    ]
    return "\n".join(lines) + "\n"


def wide_table(values, *, names=None, index="step", separator=","):
    """A table with one column per worker."""
    names = names or [f"worker_{w}" for w in range(len(values))]
    lines = [separator.join((index, *names))]
    lines += [
        separator.join((str(k), *("" if np.isnan(v) else f"{v:.6g}" for v in values[:, k])))
        for k in range(values.shape[1])
    ]
    return "\n".join(lines) + "\n"


def loaded(folder: Path, text: str | bytes, name="times.csv"):
    """The run that `starprof analyze` reads from a file with this content."""
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load([str(file)])


def verdict(folder: Path, text: str | bytes, name="times.csv"):
    """What `starprof analyze` says about it."""
    return diagnose(loaded(folder, text, name))


def blamed(result) -> set[int]:
    """All workers that a verdict names."""
    return {rank for finding in result.findings for rank in finding.ranks}


def said(result) -> str:
    """All words of a verdict."""
    return " ".join([result.reason, *(line for f in result.findings for line in (*f.evidence, f.action, f.next))])
