"""`bonobot beat`: run the scheduler process."""

from typing import Any

from django.core.management.base import BaseCommand

from bonobot.management.command_groups import COMMAND_HELPS
from bonobot.processes.programs import build_beat_process, replace_current_process


class Command(BaseCommand):
    help = COMMAND_HELPS["beat"]
    requires_system_checks: list[str] = []  # `bonobot check` is a step of its own

    def handle(self, **options: Any) -> None:
        """Become the program."""
        replace_current_process(build_beat_process())
