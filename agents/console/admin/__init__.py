"""Admin site and pages of the console."""
