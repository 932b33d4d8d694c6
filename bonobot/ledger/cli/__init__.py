"""Commands about the audit log and usage."""
