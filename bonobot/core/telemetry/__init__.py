"""Logs, metrics, traces and error reports."""
