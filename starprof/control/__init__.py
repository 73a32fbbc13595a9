"""Synchronisation modes on running jobs: the coordinator's process, and the engine in every rank."""
