"""Run files: one DuckDB file per run, written by one ingester, readable by any DuckDB client."""
