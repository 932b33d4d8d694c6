"""The command line: groups of verbs that use the same services as REST and the admin."""
