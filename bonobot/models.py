"""The app's tables, where Django looks for them; each is declared where it is used."""

from bonobot.jobs.models import Lease

__all__ = ["Lease"]
