"""Rounds between islands: HSDP, where a group of ranks holds one replica of the model in shards.

Nobody inside an island can be left behind, since every rank owns a part of each parameter. But an island as a whole is
what a rank is in DDP. The rank of its first shard, the leader, speaks for it: it runs the island's `Member` and the
connection to the coordinator. The others, its followers, do the same with their own shards in the same order, since the
leader tells them what the member wants done. A round's result is held by an island when all its ranks hold their part.
"""
