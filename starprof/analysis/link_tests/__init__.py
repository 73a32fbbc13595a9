"""Bandwidth tests of pairs: which place is bad, which are cleared, what to test next."""
