"""How ranks and coordinator speak: frames of an authenticated connection that the rank opens."""

from starprof.control.codec import MAX_MESSAGE_BYTES
from starprof.wire.frames import Service

COORDINATOR = Service(b"SPC2", "the coordinator")

MESSAGE, PING, PONG = range(1, 4)
"""Kinds of frames: a message of the protocol; a rank that has said nothing for a while is there; so is the other."""

MAX_FRAME_BYTES = MAX_MESSAGE_BYTES
PING_EVERY_S = 1.0
