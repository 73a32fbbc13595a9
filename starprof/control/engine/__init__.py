"""What runs in a rank: it carries out what the round protocol says, with tensors, threads and sockets."""
