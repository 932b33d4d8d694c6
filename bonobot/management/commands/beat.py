"""`bonobot beat`: send what is due, as one program of several."""

from typing import Any

from django.core.management.base import BaseCommand

from bonobot.management.programs import beat, become


class Command(BaseCommand):
    help = "Send what is due: sweeps, health checks, notices. Of several, one leads."
    requires_system_checks: list[str] = []  # `bonobot check` is a step of its own

    def handle(self, **options: Any) -> None:
        """Become the program."""
        become(beat())
