"""How much an update is worth, and so how long a mode takes for what a synchronous step achieves.

Learning rate r times the one that is best for the next step along the mean of N gradients of b samples, gradient noise
scale phi: along a quadratic, an update of weights w brings

    Delta = s - r (s² + phi/b sum(w²)) / (2 (1 + phi/(N b))),    s = sum(w),

in units in which a synchronous step brings 1 - r/2. This is ours; with r = 1, for one mean or one sum over x gradients,
it is the `Delta` of `s - s²/2 (1 + phi/(x b)) / (1 + phi/(N b))`. The papers' scores have no scale in them and suppose
that the learning rate is tuned anew for every batch size (`paper`).

Who tunes a rate for a whole training gets one well below the best for the next step, which makes noise cheaper: r is
0.2 to 0.7 in small trainings with real gradients (`benchmarks/score_check.py`), and nobody knows it of a running job.

Staleness multiplies the part of the work that is no noise (the rate of stale SGD, O((R+1) L/eps + sigma² L/eps²),
arXiv 2505.09218), which by the same learning rate is the share 1/(1 + phi/(N b)):

    T = (1 + c r/(2 - r) D / (sqrt(1 - momentum) (1 + phi/(N b)))) (1 - r/2) / (rate of Delta)

D is the mean staleness in full steps. With c = 1 and no momentum asynchronous updates of N workers that are all equally
fast are worth exactly what synchronous steps are, at any r, N and phi: asynchrony as such neither gains nor loses.
Under momentum a gradient moves the parameters by 1/(1 - momentum) times its own step in the end, and what a late one
does not know of is more; that time grows by the root of that is what fits real gradients, as c = 1 does. The delay's
unit is ours too.
"""

from __future__ import annotations

import math

from starprof.decision.choice.outlook import Outlook

STALENESS_COST = 1.0
RATE = 0.4
RATES = (0.2, 0.7)
"""Between which r is thought to lie; a mode must pay at both ends."""
UNKNOWN_MOMENTUM = 0.9
"""Of an optimizer of which nothing is known: what most people train with."""


def seconds_per_step(
    outlook: Outlook,
    phi: float,
    batch: float,
    workers: int,
    *,
    rate: float = RATE,
    momentum: float = 0.0,
    staleness_cost: float = STALENESS_COST,
) -> float:
    """Seconds in which a mode achieves what one synchronous step does; infinite where it achieves nothing.

    Args:
        outlook: of the mode.
        phi: gradient noise scale in samples.
        batch: samples of one worker's gradient.
        workers: N.
        rate: r.
        momentum: of the optimizer.
        staleness_cost: c.
    """
    noise = phi / batch
    noisy = 1.0 + noise / workers
    progress_per_s = 0.0
    for stream in outlook.streams:
        delta = stream.step - rate * (stream.step_squared + noise * stream.weights_squared) / (2.0 * noisy)
        if delta <= 0:
            return math.inf
        progress_per_s += delta / stream.period_s
    stale = staleness_cost * rate / (2.0 - rate) * outlook.delay_steps / (math.sqrt(1.0 - momentum) * noisy)
    return (1.0 + stale) * (1.0 - rate / 2.0) / progress_per_s


def accuracy_risk(
    outlook: Outlook, *, shuffled: bool, momentum: float = UNKNOWN_MOMENTUM, staleness_cost: float = STALENESS_COST
) -> float:
    """How far a mode is from synchronous steps over all data, from 0 to 1; a measure of ours, not a loss in points.

    It grows with the delay of gradients and, unless data are dealt out anew in each epoch, with the share of
    contributions that fast workers make in the place of slow ones. Under momentum a gradient moves the parameters by
    1/(1 - momentum) times its own step in the end, and what a late one does not know of is that much more.
    """
    stale = staleness_cost * outlook.delay_steps / (1.0 - momentum)
    fresh = 1.0 / (1.0 + stale)
    return 1.0 - fresh * (1.0 if shuffled else 1.0 - outlook.skew)
