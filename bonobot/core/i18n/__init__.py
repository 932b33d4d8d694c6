"""Translatable messages, and the reader's language and time zone."""
