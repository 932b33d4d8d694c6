"""REST API of the audit log and usage."""
