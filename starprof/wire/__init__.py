"""Authenticated connections between starprof's own processes: the handshake, the frames, and a blocking channel."""
