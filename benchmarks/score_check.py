"""Scores against training: does a mode gain over ssgd what the formula says, when gradients are real?

    python benchmarks/score_check.py [--seeds 2] [--model mlp]

A small model is trained on scikit-learn's handwritten digits in simulated time, with the learning rate that is best for
synchronous steps, by 8 workers of which some are slow, in many modes, until the held-out loss is reached. Gains over
ssgd are held against what the score of `starprof.decision.choice.progress` says, for several costs of staleness c, and
against STAR's score with the right round times. The noise scale is measured from the gradients of the same training.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from starprof.decision.choice.candidates import outlooks
from starprof.decision.choice.outlook import Outlook
from starprof.decision.choice.progress import seconds_per_step
from starprof.decision.choice.situation import Situation
from starprof.demo.digits import digits, model
from starprof.simulation import Mode, Steady, Until, Worker, simulate
from starprof.simulation.training.real import RealTraining, noise_scale

WORKERS, BATCH = 8, 8
RATES = (0.1, 0.2, 0.4, 0.8, 1.6)
LOSS, LONGEST = 0.25, 600.0
JOBS = {
    "all alike": (1,) * 8,
    "one twice as slow": (1,) * 7 + (2,),
    "one five times as slow": (1,) * 7 + (5,),
    "four twice as slow": (1,) * 4 + (2,) * 4,
    "all different": tuple(np.linspace(1, 3, 8)),
}
SCATTER = 0.1
COSTS = (0.0, 0.5, 0.75, 1.0, 1.25, 2.0)
LOOKED_AT = ("asgd", "static-x", "ring-x", "dynamic-x", "m-sync", "m-sync-fold", "lgc", "rennala", "eager", "local-sgd")
OPTIONS_OF_EACH = 2


def seconds_to_loss(mode: Mode, factors, training: RealTraining, seed: int) -> float:
    """Simulated seconds until the held-out loss is reached; infinite where it never is."""
    staff = [Worker(at, Steady(0.5 * factor, SCATTER), batch=BATCH) for at, factor in enumerate(factors)]
    history = simulate(mode, staff, training, until=Until(progress=LONGEST), seed=seed)
    return history.time_to_loss(LOSS) or math.inf


def tuned(name: str, seeds: int) -> RealTraining:
    """Training at the best of some learning rates for synchronous steps."""
    data = digits()

    def at(rate: float) -> RealTraining:
        return RealTraining(model(name), data, rate, evaluate_every=2.0)

    def seconds(rate: float) -> float:
        return float(np.mean([seconds_to_loss(Mode("ssgd"), (1,) * WORKERS, at(rate), seed) for seed in range(seeds)]))

    return at(min(RATES, key=seconds))


def chosen(found: list[Outlook]) -> list[Outlook]:
    """Some options of each mode: the middle one and the last."""
    picked = []
    for name in LOOKED_AT:
        of = [one for one in found if one.mode == name]
        picked += [of[at] for at in sorted({len(of) // 2, len(of) - 1})[:OPTIONS_OF_EACH] if of]
    return picked


def by_star(outlook: Outlook, phi: float) -> float:
    """STAR's score with the right time between updates: no weights, no staleness."""
    (stream, *_) = outlook.streams
    taken = stream.step_squared / stream.weights_squared
    return (1.0 / outlook.updates_per_s) * (1.0 + phi / (taken * BATCH))


def gain_told(one: Outlook, plain: Outlook, phi: float, cost: float) -> float:
    """Logarithm of a mode's gain by our score, for a cost of staleness."""
    seconds = [seconds_per_step(outlook, phi, BATCH, WORKERS, cost) for outlook in (plain, one)]
    return math.log(seconds[0] / seconds[1])


def main() -> None:
    """Train, compare, print."""
    options = argparse.ArgumentParser()
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--model", default="mlp")
    asked = options.parse_args()
    training = tuned(asked.model, asked.seeds)
    steps = [5, 20, 60]
    phis = [noise_scale(training, BATCH * WORKERS, after=after, draws=100) for after in steps]
    phi = float(np.exp(np.mean(np.log(phis))))
    print(f"rate {training.rate}, noise scale {', '.join(f'{p:.0f}' for p in phis)} samples; {phi:.0f} is used")
    rows = []
    for name, factors in JOBS.items():
        rng = np.random.default_rng(0)
        sigma = math.sqrt(math.log1p(SCATTER**2))
        times = 0.5 * np.array(factors) * np.exp(rng.normal(-(sigma**2) / 2, sigma, (60, WORKERS)))
        found, _ = outlooks(Situation(tuple(range(WORKERS)), times, BATCH), sum(f > 1.2 for f in factors))
        plain = [seconds_to_loss(Mode("ssgd"), factors, training, seed) for seed in range(asked.seeds)]
        print(f"\n{name}: seconds to a loss of {LOSS} in ssgd {np.mean(plain):.1f}")
        for one in chosen(found):
            spent = [seconds_to_loss(Mode(one.mode, one.options), factors, training, s) for s in range(asked.seeds)]
            actual = float(np.mean(np.log(np.array(plain) / np.array(spent))))
            told = [gain_told(one, found[0], phi, cost) for cost in COSTS]
            star = math.log(by_star(found[0], phi) / by_star(one, phi))
            short = str({key: value for key, value in one.options.items() if key != "groups"})
            ours = math.exp(told[COSTS.index(1.0)])
            print(
                f"  {one.mode:12}{short:34} real {math.exp(actual):5.2f}x  "
                f"told {ours:5.2f}x  STAR {math.exp(star):5.2f}x"
            )
            if math.isfinite(actual):
                rows.append((actual, *told, star))
    table = np.array(rows)
    table = table[np.isfinite(table).all(axis=1)]
    print(
        f"\n{len(table)} modes that reach the loss; error of the logarithm of the gain (root mean square), correlation"
    )
    for at, name in enumerate([*(f"c={c}" for c in COSTS), "STAR"], start=1):
        error = math.sqrt(float(np.mean((table[:, at] - table[:, 0]) ** 2)))
        print(f"  {name:8} {error:.3f}  {np.corrcoef(table[:, at], table[:, 0])[0, 1]:.3f}")


if __name__ == "__main__":
    main()
