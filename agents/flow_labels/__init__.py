"""Flow labels that callers hold, and what a call does to them."""
