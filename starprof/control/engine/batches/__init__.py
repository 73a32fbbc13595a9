"""Batches of the training loop: counted, and passed over where a late rank has missed iterations."""

from starprof.control.engine.batches.loop import Batches, Tally

__all__ = ["Batches", "Tally"]
