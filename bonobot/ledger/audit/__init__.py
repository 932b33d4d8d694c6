"""The audit log: hash chain, verification, search, export, retention."""
