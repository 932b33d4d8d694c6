"""The admin theme."""
