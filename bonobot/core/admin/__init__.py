"""The look of the admin."""
