"""Presets: catalog entries for servers, with a proof that the server exists."""
