"""Fixtures of the command line's tests."""

from tests.command_line import acme, bonobot

__all__ = ["acme", "bonobot"]
