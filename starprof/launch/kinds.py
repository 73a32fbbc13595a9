"""What recorders say to each other: node 0's service, and the kinds of its frames (see `receiver` and `sender`)."""

from starprof.wire.frames import Service

NODE_0 = Service(b"SPT3", "node 0")

JOIN, WELCOME, REFUSED, PING, PONG, OFFER, WANT, CHUNK, DONE, STORED, BAD, BYE, FAREWELL = range(1, 14)
STREAM, TAKEN = 14, 15
ASK, PART, ANSWER = 16, 17, 18
