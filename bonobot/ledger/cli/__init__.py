"""Command line verbs of the audit log and usage."""
