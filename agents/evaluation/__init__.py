"""Evaluation: record sessions, and replay them with a changed agent."""
