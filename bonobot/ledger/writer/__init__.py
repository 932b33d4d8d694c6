"""The ledger writer: one thread per process that admits and settles its calls."""
