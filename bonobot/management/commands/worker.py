"""`bonobot worker`: take work, as one program of several."""

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand

from bonobot.management.programs import QUEUES, become, worker


class Command(BaseCommand):
    help = "Take work here: sessions, discovery, health checks. As many as wanted, on any host."
    requires_system_checks: list[str] = []  # `bonobot check` is a step of its own

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--queues",
            type=queues,
            default=QUEUES,
            metavar="A,B",
            help=f"take from these only (default: {','.join(QUEUES)})",
        )
        parser.add_argument("--name", default="", help="tell several workers of one host apart")

    def handle(self, **options: Any) -> None:
        """Become the program."""
        become(worker(options["queues"], options["name"]))


def queues(text: str) -> tuple[str, ...]:
    """Return the queues that an option names; raises ArgumentTypeError."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found or set(found) - set(QUEUES):
        raise ArgumentTypeError(f"{text!r}: choose among {', '.join(QUEUES)}")
    return found
