"""The learned chooser's model file: trees by mode, the range they were trained in, and how well they chose."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from starprof.decision.choice.learned import trees
from starprof.decision.choice.learned.features import NAMES, OF_JOB
from starprof.decision.choice.learned.trees import Trees
from starprof.errors import InputError

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats

MODEL_VERSION = 2
"""2: the trees correct scores that know of learning rates below the best for one step."""
KIND = "starprof chooser"
MARGIN = 0.05
"""Share of its span by which a feature may lie beyond those of the training."""
UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error)
DEFAULT = Path(__file__).with_name("default.npz")
"""Shipped with the package; `python benchmarks/train_chooser.py` makes it."""


@dataclass(frozen=True)
class Range:
    """Where the training jobs lie.

    Attributes:
        low: smallest value of each feature of a job, shape (F,).
        high: largest.
        centre: mean.
        whiten: inverse of a Cholesky factor of their covariance, shape (F, F).
        farthest: distance from the centre that nearly all of them keep.
    """

    low: Floats
    high: Floats
    centre: Floats
    whiten: Floats
    farthest: float

    def outside(self, job: Floats) -> str:
        """Why a job is not among those that were trained on; "" when it is."""
        for name, value, low, high in zip(OF_JOB, job, self.low, self.high, strict=True):
            if not low <= value <= high:
                return f"{name} is {value:.3g}, trained were {low:.3g} to {high:.3g}"
        distance = self.distance(job)
        if distance > self.farthest:
            return f"the job is {distance:.1f} from those it was trained on, which lie within {self.farthest:.1f}"
        return ""

    def distance(self, job: Floats) -> float:
        """From the centre, in standard deviations along every direction (Mahalanobis)."""
        return float(np.linalg.norm(self.whiten @ (job - self.centre)))


@dataclass(frozen=True)
class Model:
    """A trained chooser.

    Attributes:
        modes: trees by mode; they give what to add to the logarithm of the heuristic's gain.
        range: of the training jobs.
        about: what it was trained on; `regret` of `learned` and `heuristic`, by cross-validation.
    """

    modes: Mapping[str, Trees]
    range: Range
    about: Mapping[str, Any]

    @property
    def regrets(self) -> tuple[float, float]:
        """Mean time beyond that of the best mode, as a share of it: of this chooser and of the heuristic."""
        regret = self.about["regret"]
        return float(regret["learned"]), float(regret["heuristic"])

    @property
    def better(self) -> bool:
        """Whether it chose better than the heuristic on jobs that it was not trained on."""
        learned, heuristic = self.regrets
        return learned < heuristic


def save(path: Path, model: Model) -> None:
    """Write a model; equal models give equal files.

    Raises:
        OSError: the file can't be written.
    """
    told = {"kind": KIND, "version": MODEL_VERSION, "names": list(NAMES), "modes": list(model.modes)}
    told["about"] = dict(model.about)
    arrays: dict[str, Any] = {"header": np.array(json.dumps(told, sort_keys=True))}
    for name in ("low", "high", "centre", "whiten"):
        arrays[f"range.{name}"] = getattr(model.range, name)
    arrays["range.farthest"] = np.array(model.range.farthest)
    for mode, one in model.modes.items():
        arrays.update(one.arrays(mode))
    np.savez_compressed(path, allow_pickle=False, **arrays)


def load(path: Path = DEFAULT) -> Model:
    """Read a model.

    Raises:
        InputError: it can't be read, is none of ours, of another version, or knows other features.
    """
    try:
        # From memory: of a damaged file numpy would leave the handle open.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        header = json.loads(str(arrays["header"][()]))
        kind, version, names = header["kind"], header["version"], header["names"]
    except UNREADABLE as error:
        raise InputError(f"{path} holds no chooser of starprof, or is damaged: {error}") from error
    if kind != KIND or version != MODEL_VERSION or names != list(NAMES):
        raise InputError(f"{path} is a chooser of version {version}, this is version {MODEL_VERSION}")
    try:
        modes = {str(mode): trees.from_arrays(arrays, str(mode), len(NAMES)) for mode in header["modes"]}
        return Model(modes, _range(arrays), header["about"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged: {error}") from error


@cache
def default() -> Model:
    """The model that ships with the package."""
    return load()


def _range(arrays: Mapping[str, Any]) -> Range:
    count = len(OF_JOB)
    low, high, centre, whiten = (arrays[f"range.{name}"] for name in ("low", "high", "centre", "whiten"))
    if not (low.shape == high.shape == centre.shape == (count,) and whiten.shape == (count, count)):
        raise ValueError("its range does not fit its features")
    return Range(low, high, centre, whiten, float(arrays["range.farthest"]))


def range_of(jobs: Floats) -> Range:
    """Range of training jobs, shape (M, F): of each feature with a small margin, and of all together."""
    low, high = np.quantile(jobs, [0.0005, 0.9995], axis=0)
    margin = MARGIN * (high - low)
    low, high = low - margin, high + margin
    centre = jobs.mean(axis=0)
    spread = np.cov(jobs.T) + 1e-6 * np.diag(jobs.var(axis=0) + 1e-6)
    whiten = np.linalg.inv(np.linalg.cholesky(spread))
    distances = np.linalg.norm((jobs - centre) @ whiten.T, axis=1)
    return Range(low, high, centre, whiten, float(np.quantile(distances, 0.995)))
