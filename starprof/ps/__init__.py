"""Training on a parameter server: shards that hold the parameters, and workers that push gradients and pull them."""
