"""REST of the audit log and of usage."""
