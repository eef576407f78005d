"""Where records are said: the catalog, the log protocols, Kafka and an in-memory log, clock and deadline."""
