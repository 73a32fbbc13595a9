"""Counters of the node, one module per source; each takes its paths or library as an argument."""
