"""Budgets of agents: limits, what a call costs, alerts."""
