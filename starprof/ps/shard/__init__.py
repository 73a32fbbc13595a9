"""One shard of a parameter server: some of the parameters, their optimizer, and the gradients that have come."""
