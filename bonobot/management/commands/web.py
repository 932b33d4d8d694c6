"""`bonobot web`: answer HTTP, as one program of several."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from bonobot.management.programs import become, port_number, web


class Command(BaseCommand):
    help = "Answer HTTP here: admin, REST and MCP. Migrate first; `bonobot up` starts everything."
    requires_system_checks: list[str] = []  # `bonobot check` is a step of its own

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
        parser.add_argument("--port", type=port_number, default=8000, help="port to listen on")

    def handle(self, **options: Any) -> None:
        """Become the program."""
        become(web(options["host"], options["port"]))
