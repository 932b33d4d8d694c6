"""Outbound HTTP through the egress guard, and response headers."""
