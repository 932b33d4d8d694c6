"""`bonobot worker`: run a worker process."""

from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand

from bonobot.jobs.queues import QUEUE_NAMES, QUEUES
from bonobot.processes.programs import build_worker_process, replace_current_process

HELP = """\
Take work here: sessions, discovery, health checks. As many as wanted, on any host.

A worker takes from all queues in turn, so that none waits for another:
{queues}
"""
EXAMPLES = """\
examples:
  bonobot worker                                      all of them
  bonobot worker --queues sessions                    sessions only, on the hosts that are for them
  bonobot worker --queues discovery,health            what talks to servers that may be slow
  bonobot worker --queues sweeps,notices,upkeep --name two   the rest, beside another on this host

Each queue needs a worker somewhere that takes from it.
"""


class Command(BaseCommand):
    help = HELP.format(queues="\n".join(f"  {one.name:<10} {one.description}" for one in QUEUES))
    requires_system_checks: list[str] = []  # `bonobot check` is a step of its own

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.epilog = EXAMPLES
        parser.add_argument(
            "--queues",
            type=parse_queues,
            default=QUEUE_NAMES,
            metavar="A,B",
            help="take from these only (default: all)",
        )
        parser.add_argument("--name", default="", help="tell several workers of one host apart")

    def handle(self, **options: Any) -> None:
        """Become the program."""
        replace_current_process(build_worker_process(options["queues"], options["name"]))


def parse_queues(text: str) -> tuple[str, ...]:
    """Return the queues of an option; raises `ArgumentTypeError`."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or set(names) - set(QUEUE_NAMES):
        raise ArgumentTypeError(f"{text!r}: choose among {', '.join(QUEUE_NAMES)}")
    return names
