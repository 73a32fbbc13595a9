"""Times and readiness per worker, as tables and simple logs hold them."""
