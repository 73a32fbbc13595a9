"""Names under which the processes of a parameter server show up in a record: they descend from a rank, and are none."""

SHARD = "starprof-shard"
HEAD = "starprof-head"
SERVER = "starprof-ps"

ALL = frozenset({SHARD, HEAD, SERVER})
