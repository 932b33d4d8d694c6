"""Bonobot: AI agents and the MCP servers they use, governed in one place."""

from bonobot.version import __version__

__all__ = ["__version__"]
