"""What other tools have recorded, as the same `RunData` that `starprof record` gives: one module per format."""
