"""Ports for the jobs of tests."""

import random
import socket
from pathlib import Path

OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
CHOICE = random.SystemRandom()


def free_port():
    """A port that nobody listens on, below those that the kernel gives to connections.

    One that the kernel picks (port 0) may be given to somebody's connection before the job listens on it.
    """
    first_outgoing = int(OUTGOING.read_text().split()[0])
    for _ in range(100):
        port = CHOICE.randrange(first_outgoing // 2, first_outgoing)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("no port is free")
