"""Small models with gradients written out by hand, in numpy: fast where a batch is a few samples."""
