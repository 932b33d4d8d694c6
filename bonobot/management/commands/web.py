"""`bonobot web`: run the web process."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from bonobot.management.command_groups import COMMAND_HELPS, add_examples
from bonobot.processes.programs import build_web_process, parse_port, replace_current_process


class Command(BaseCommand):
    help = COMMAND_HELPS["web"]
    requires_system_checks: list[str] = []  # `bonobot check` is a step of its own

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_examples(parser, "bonobot web", "bonobot web --host 0.0.0.0 --port 8080")
        parser.add_argument(
            "--host", default="127.0.0.1", help="Address to listen on (default: 127.0.0.1)"
        )
        parser.add_argument(
            "--port", type=parse_port, default=8000, help="Port to listen on (default: 8000)"
        )

    def handle(self, **options: Any) -> None:
        """Become the program."""
        replace_current_process(build_web_process(options["host"], options["port"]))
