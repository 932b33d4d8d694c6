"""Fixtures for the tests of the command line."""

from tests.command_line import acme, bonobot

__all__ = ["acme", "bonobot"]
