"""Outbound HTTP through the egress guard, and headers of responses."""
