"""Health checks and metrics of an installation."""
