"""Agents with their tools, policies, sessions and approvals."""
