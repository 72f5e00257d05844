"""Everything on one machine: the data directory, embedded PostgreSQL and Redis, the five processes, one screen."""
