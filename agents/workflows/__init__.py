"""Workflows: declared sequences of tool calls and agent calls, run as sessions."""
