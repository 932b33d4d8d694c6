"""Health checks, outages and uptime of servers."""
