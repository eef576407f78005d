"""Several learner ranks: each joins and trains the groups of its own partitions, rank 0 decides and writes."""
