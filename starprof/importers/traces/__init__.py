"""Traces of profilers and timelines, and what other tools have derived from them."""
