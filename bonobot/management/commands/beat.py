"""`bonobot beat`: run the scheduler process."""

from typing import Any

from django.core.management.base import BaseCommand

from bonobot.processes.programs import build_beat_process, replace_current_process


class Command(BaseCommand):
    help = "Run the scheduler, which starts scheduled jobs. If several run, one is active."
    requires_system_checks: list[str] = []  # `bonobot check` is a step of its own

    def handle(self, **options: Any) -> None:
        """Become the program."""
        replace_current_process(build_beat_process())
