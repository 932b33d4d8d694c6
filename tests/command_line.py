"""Run verbs of the command line in this process, with their output and exit status."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand

from bonobot.accounts.models import Organization
from bonobot.core.cli.command_group import CommandGroup
from bonobot.ledger.writer.writer_thread import get_writer
from tests import factories


@dataclass(frozen=True)
class CommandResult:
    """The output and exit status of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return the output as JSON."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """Return the error in the JSON output."""
        return json.loads(self.err)["error"]


class Terminal(StringIO):
    """An output that is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@cache
def load_command(name: str) -> BaseCommand | str:
    """Return a group of verbs with a parser that it keeps; of other commands, the name."""
    if get_commands().get(name) != "bonobot":
        return name
    command = load_command_class("bonobot", name)
    if not isinstance(command, CommandGroup):
        return name
    # A group's parser has hundreds of options; parsing doesn't change it.
    command.create_parser = cache(command.create_parser)  # type: ignore[method-assign]
    return command


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    """The only organization, which is the default of every verb."""
    return factories.create_organization()


@pytest.fixture
def bonobot(acme: Organization) -> Any:
    """A function that runs `bonobot ARGUMENTS`."""

    def run(*arguments: str, terminal: bool = False) -> CommandResult:
        out, err = (Terminal(), Terminal()) if terminal else (StringIO(), StringIO())
        status = 0
        try:
            call_command(load_command(arguments[0]), *arguments[1:], stdout=out, stderr=err)
        except SystemExit as ended:
            status = int(ended.code or 0)
        return CommandResult(status, out.getvalue(), err.getvalue())

    yield run
    get_writer().close()


Bonobot = Callable[..., CommandResult]
