"""Translatable messages, languages and time zones."""
