"""The processes of an installation, and what starts them together."""
