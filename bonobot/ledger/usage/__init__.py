"""Usage: rollups of the audit log, and reports over them."""
