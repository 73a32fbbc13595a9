"""Counters that monitoring has recorded: samples without step times."""
