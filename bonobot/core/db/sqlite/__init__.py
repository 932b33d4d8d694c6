"""SQLite as Django's backend, with one queue of writers in each process; see `turns`."""
