"""Bonobot: AI agents and the MCP servers they use, governed in one place.

The Celery application is imported here so that `@shared_task` finds its broker in every process.
"""

from bonobot.celery import app as celery_app
from bonobot.version import __version__

__all__ = ["__version__", "celery_app"]
