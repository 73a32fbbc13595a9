"""Runs in a ClickHouse database: the same tables and queries as in a run file, for many runs and many machines.

`address` reads where it is, `tables` makes the tables, `ledger` makes writing exactly once, `run` is one run in it
(it can do what `starprof.store.runfile.RunFile` can), and `transfer` copies whole runs to and from run files.
"""
