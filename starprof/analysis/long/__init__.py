"""Runs that are too long for memory, block by block."""
