"""Collective calls with their durations: who arrives last waits least."""
