"""A trained predictor as a file: weights, which predictor to use at which horizon, and how good each was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from starprof.decision.choice.stragglers import TAG
from starprof.decision.prediction import tensors
from starprof.decision.prediction.baselines import BASELINES, Predictor
from starprof.decision.prediction.evaluation import HORIZONS, Contest
from starprof.decision.prediction.history import ROLLOUT
from starprof.decision.prediction.lstm import NETWORK, Lstm, expected_shapes
from starprof.errors import InputError

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats

MODEL_VERSION = 1
KIND = "starprof predictor"


@dataclass(frozen=True)
class Model:
    """Predictors by horizon.

    Attributes:
        used: name of the predictor by horizon.
        tags: threshold on predicted times by predictor and horizon.
        network: None: it was not trained, or wins nowhere.
        about: what it was trained and tested on, and the results.
    """

    used: Mapping[int, str]
    tags: Mapping[str, Mapping[int, float]]
    network: Lstm | None
    about: Mapping[str, Any]

    def predict(self, past: Floats) -> Floats:
        """Times of the next iterations, shape (N, ROLLOUT), from histories of shape (N, W, 4).

        Each stretch up to a horizon comes from the predictor that is best there.
        """
        made: dict[str, Floats] = {}
        told = np.empty((*past.shape[:-2], ROLLOUT))
        begin = 0
        for horizon in HORIZONS:
            name = self.used[horizon]
            if name not in made:
                made[name] = self._predictor(name).predict(past)
            told[..., begin:horizon] = made[name][..., begin:horizon]
            begin = horizon
        return told

    def tag(self, horizon: int) -> float:
        """Threshold on predicted times at a horizon."""
        return self.tags[self.used[horizon]][horizon]

    def _predictor(self, name: str) -> Predictor:
        if name == NETWORK:
            assert self.network is not None
            return self.network
        return next(one for one in BASELINES if one.name == name)


UNTRAINED = Model(
    dict.fromkeys(HORIZONS, "ewma"), {"ewma": dict.fromkeys(HORIZONS, TAG)}, None, {"trained_on": "nothing"}
)
"""Used where there is no model file: the average is the steadiest of the baselines."""


def model_of(result: Contest, tags: Mapping[str, Mapping[int, float]], network: Lstm | None, about: str) -> Model:
    """A model of what a contest has shown."""
    told = {
        "trained_on": about,
        "held_out": {name: [asdict(one) for one in of] for name, of in result.qualities.items()},
        "margins": {str(horizon): list(margin) for horizon, margin in result.margins.items()},
    }
    kept = network if NETWORK in result.used.values() else None
    return Model(result.used, tags, kept, told)


def save(path: Path, model: Model) -> None:
    """Write a model.

    Raises:
        OSError: the file can't be written.
    """
    told = {
        "used": {str(horizon): name for horizon, name in model.used.items()},
        "tags": {name: {str(h): tag for h, tag in of.items()} for name, of in model.tags.items()},
        "about": model.about,
    }
    arrays = model.network.arrays if model.network is not None else {}
    tensors.save(path, arrays, {"kind": KIND, "version": str(MODEL_VERSION), "model": json.dumps(told, sort_keys=True)})


def load(path: Path) -> Model:
    """Read a model.

    Raises:
        InputError: it can't be read, is none of ours, or of another version.
    """
    arrays, metadata = tensors.load(path)
    if metadata.get("kind") != KIND:
        raise InputError(f"{path} holds no predictor of starprof")
    if metadata.get("version") != str(MODEL_VERSION):
        raise InputError(f"{path} is a predictor of version {metadata.get('version')}, this is version {MODEL_VERSION}")
    try:
        told = json.loads(metadata["model"])
        used = {horizon: str(told["used"][str(horizon)]) for horizon in HORIZONS}
        tags = {str(name): {h: float(of[str(h)]) for h in HORIZONS} for name, of in told["tags"].items()}
        network = _network(arrays) if arrays else None
        _check(used, tags, network)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    return Model(used, tags, network, told.get("about", {}))


def _network(arrays: Mapping[str, Any]) -> Lstm:
    shapes = {name: array.shape for name, array in arrays.items()}
    if shapes != expected_shapes(arrays["head.0.bias"].shape[0]):
        raise ValueError("its weights have other shapes than the network's")
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise ValueError("its weights are no numbers")
    return Lstm(arrays)


def _check(used: Mapping[int, str], tags: Mapping[str, object], network: Lstm | None) -> None:
    known: Sequence[str] = [one.name for one in BASELINES] + ([NETWORK] if network is not None else [])
    for name in used.values():
        if name not in known or name not in tags:
            raise ValueError(f"it wants to use {name}, which it does not hold")
