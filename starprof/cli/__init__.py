"""The command line: one module per verb; `main` turns every StarprofError into one line and an exit code."""
