"""The parameter server's transport: short heads, sealed, each followed by as many bare bytes as it tells.

    client                                     server
    Connection.send(kind, header, payload) ──▶ Hub, in one thread: Owner.room(line, head) says where the payload goes,
                                               Owner.came(line, head, payload) gets it when it is there as a whole
    Connection.receive() ◀──────────────────── Line.send(kind, header, payload), from memory that stays as it is
    Connection.receive_into(buffer)            until `done` is called

Who is there is proven on both sides (`starprof.wire.frames`), and so are the heads: who said it, in which order, and
how many bytes follow. The numbers themselves travel unsealed, as those of the job's own collectives do. Nothing is
copied but by the kernel, and nothing is allocated for a payload: it goes into, and comes from, memory of the owner.
"""

from starprof.ps.wire.connection import Connection, connect
from starprof.ps.wire.heads import MAX_HEADER_BYTES, SERVICE, Head, Limits
from starprof.ps.wire.hub import Hub, listen
from starprof.ps.wire.line import Line, Owner
from starprof.ps.wire.sockets import pace

__all__ = [
    "MAX_HEADER_BYTES",
    "SERVICE",
    "Connection",
    "Head",
    "Hub",
    "Limits",
    "Line",
    "Owner",
    "connect",
    "listen",
    "pace",
]
