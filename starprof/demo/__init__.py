"""The demo: a small real training job with one real injected fault, recorded and diagnosed."""
