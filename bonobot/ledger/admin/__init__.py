"""Admin pages of the ledger."""
