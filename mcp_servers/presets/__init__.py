"""Presets: ready server entries with the proof that the server exists."""
