"""Imports the app's models, which are defined where they are used."""

from bonobot.jobs.models import Lease

__all__ = ["Lease"]
