"""A worker of a parameter server: in the user's process, between its loop's optimizer and the shards."""
