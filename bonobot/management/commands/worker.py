"""`bonobot worker`: run a worker process."""

from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand

from bonobot.jobs.queues import QUEUE_NAMES, QUEUES
from bonobot.management.command_groups import COMMAND_HELPS
from bonobot.processes.programs import build_worker_process, replace_current_process

HELP = """\
{summary} You can run several workers
on any number of hosts.

A worker takes jobs from its queues in turn, so no queue blocks another:
{queues}
"""
EXAMPLES = """\
examples:
  bonobot worker                                             all queues
  bonobot worker --beat                                      all queues, and the scheduler
  bonobot worker --queues sessions                           sessions only
  bonobot worker --queues discovery,health                   jobs that connect to servers
  bonobot worker --queues sweeps,notices,upkeep --name two   the rest, as a second worker here

Each queue needs at least one worker.
"""


class Command(BaseCommand):
    help = HELP.format(
        summary=COMMAND_HELPS["worker"],
        queues="\n".join(f"  {queue.name:<10} {queue.description}" for queue in QUEUES),
    )
    requires_system_checks: list[str] = []  # `bonobot check` is a step of its own

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.epilog = EXAMPLES
        parser.add_argument(
            "--queues",
            type=parse_queues,
            default=QUEUE_NAMES,
            metavar="A,B",
            help="Only take jobs from these queues (default: all)",
        )
        parser.add_argument(
            "--name", default="", help="Name that is unique among the workers on this host"
        )
        parser.add_argument(
            "--beat",
            action="store_true",
            help="Also run the scheduler, instead of a process of its own (`bonobot beat`)",
        )

    def handle(self, **options: Any) -> None:
        """Become the program."""
        replace_current_process(
            build_worker_process(options["queues"], options["name"], with_beat=options["beat"])
        )


def parse_queues(text: str) -> tuple[str, ...]:
    """Return the queues of an option; raises `ArgumentTypeError`."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or set(names) - set(QUEUE_NAMES):
        raise ArgumentTypeError(
            f"{text!r} isn't valid. Use one or more of: {', '.join(QUEUE_NAMES)}"
        )
    return names
