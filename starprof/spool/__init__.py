"""The crash-safe way from ranks and agents to the run file: rings, frames, segments. Standard library only."""
