"""The usage page."""
