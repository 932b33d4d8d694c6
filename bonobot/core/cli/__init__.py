"""The command line: groups of verbs over the same operations that REST and the admin use."""
