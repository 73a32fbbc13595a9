"""`--gpu-hour-price`, for the verbs that print or draw a verdict."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from starprof.errors import UsageError

if TYPE_CHECKING:
    from starprof.model.verdict import Verdict


def _checked(price: float | None) -> float | None:
    """Refuse what is no price before any work is done."""
    if price is not None and not (math.isfinite(price) and price >= 0):
        raise UsageError(f"--gpu-hour-price {price:g}: a price is a number of at least 0")
    return price


GPU_HOUR_PRICE = typer.Option(
    None,
    "--gpu-hour-price",
    metavar="PRICE",
    help="What one GPU costs for an hour, to tell the cost in money.",
    callback=_checked,
)


def priced(verdict: Verdict, price: float | None) -> Verdict:
    """The verdict with its cost in money; as it is without a price."""
    if price is None:
        return verdict
    return replace(verdict, cost=replace(verdict.cost, money=round(verdict.cost.gpu_hours * price, 6)))
