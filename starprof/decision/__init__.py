"""What to do about stragglers: pure decisions over measured facts, each with its inputs, its rivals and its reason."""
