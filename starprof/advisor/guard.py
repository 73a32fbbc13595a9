"""Watches over the training itself: whether the loss, or the gradient, goes where it did not go in native steps."""

from __future__ import annotations

from collections import deque

import numpy as np

from starprof.advisor.events import Loss

REFERENCE, LEAST_REFERENCE = 40, 8
RECENT = 6
SPREADS = 5.0
"""The recent median may be this many standard deviations of single losses above the reference."""
LEAST_RISE = 0.3
"""And a rise of less than this share of the reference is none."""
NORM_RISE = 10.0
NOT_FINITE_RUNNING = 2
"""A single one may be a batch's; a loss scale that is being found makes gradients infinite, not losses."""
_TO_DEVIATION = 1.4826


class DivergenceGuard:
    """Of one job.

    The reference is what native steps had last. A loss that falls in rounds takes the reference down with it, so that
    a later rise is held against what had been reached.
    """

    def __init__(self) -> None:
        self._reference: deque[float] = deque(maxlen=REFERENCE)
        self._norms: deque[float] = deque(maxlen=REFERENCE)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._recent_norms: deque[float] = deque(maxlen=3)
        self._reached = np.inf
        self._not_finite = 0

    def heard(self, loss: Loss, *, native: bool) -> None:
        """A loss or a norm has come."""
        if not loss.finite:
            self._not_finite += 1
            return
        if loss.loss is not None:
            self._not_finite = 0
            (self._reference if native else self._recent).append(loss.loss)
            if not native and len(self._recent) == RECENT:
                self._reached = min(self._reached, float(np.median(self._recent)))
        if loss.norm is not None:
            (self._norms if native else self._recent_norms).append(loss.norm)

    def begin(self) -> None:
        """Rounds begin: what comes is held against what was."""
        self._recent.clear()
        self._recent_norms.clear()
        self._reached = np.inf
        self._not_finite = 0

    def alarm(self) -> str:
        """Why the training should go back; "" for no reason."""
        if self._not_finite >= NOT_FINITE_RUNNING:
            return "the loss is not finite any more"
        if len(self._reference) >= LEAST_REFERENCE and len(self._recent) == RECENT:
            known = np.array(self._reference)
            usual = float(np.median(known))
            spread = _TO_DEVIATION * float(np.median(np.abs(known - usual)))
            usual = min(usual, self._reached)
            now = float(np.median(self._recent))
            if now > usual + max(SPREADS * spread, LEAST_RISE * abs(usual)):
                return f"the loss has risen to {now:.4g}, from {usual:.4g}"
        if len(self._norms) >= 2 and len(self._recent_norms) == 3:
            usual, now = float(np.median(self._norms)), float(np.median(self._recent_norms))
            if now > NORM_RISE * usual:
                return f"the gradient's norm has risen to {now:.4g}, from {usual:.4g}"
        return ""
