"""Template filters for what this package shows."""
