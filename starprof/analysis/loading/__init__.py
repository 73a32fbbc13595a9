"""What data loaders tell: who waits for data, and who waits for them."""
