"""Groups of verbs: parsing, output, exit status, `--watch`.

Every verb works as the platform administrator of this host, in `--org SLUG` (default: the only
organization), and prints a table for people or, with `--json`, JSON for programs. Exit status: 0
done, 1 refused or failed, 2 wrong usage. Problems say their code, field and remedy on stderr.
"""

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError
from django.utils import timezone
from rich.console import Console
from rich.live import Live
from rich.progress import Progress
from rich.prompt import Confirm, Prompt
from rich.table import Table
from rich.text import Text

from bonobot import __version__
from bonobot.core.cli.command_environment import build_command_principal, find_readiness_problem
from bonobot.core.problems import InvalidInput, Problem, ServiceUnavailable
from bonobot.core.text import placeholders
from bonobot.core.text.untrusted_text import make_visible

# What the audit calls this program.
CLIENT = f"bonobot-cli/{__version__}"

# Output that goes to a file or a pipe is not wrapped at a terminal's width.
WIDTH_OF_FILES = 200

Declare = Callable[[argparse.ArgumentParser], object]


@dataclass(frozen=True)
class CommandVerb:
    """One verb of a group: what it's called, what it does, its arguments, and examples."""

    name: str
    help: str
    run: "Callable[[CommandContext, argparse.Namespace], None]"
    declare: Declare = lambda parser: None
    examples: Sequence[str] = ()


class CommandFailed(Exception):
    """The verb has said what went wrong; the exit status is 1."""


class CommandContext:
    """What a verb works with: who asks, and how to answer."""

    def __init__(self, *, org: str | None, as_json: bool, stdout: Any, stderr: Any) -> None:
        self.as_json = as_json
        self._org = org
        self._principal: Any = None
        self._stdout = stdout
        self.out = _build_console(stdout, width=None if stdout.isatty() else WIDTH_OF_FILES)
        self.err = _build_console(stderr)

    @property
    def principal(self) -> Any:
        """The platform administrator in the chosen organization; raises `NotFound`, `Invalid`."""
        if self._principal is None:
            self._principal = build_command_principal(self._org)
        return self._principal

    def emit(self, value: Any, drawn: Any = None) -> None:
        """Print `value` as JSON where that was asked for, else what was drawn for people."""
        if self.as_json:
            self._stdout.write(json.dumps(value, indent=2, default=str, ensure_ascii=False) + "\n")
        elif drawn is not None:
            self.out.print(drawn)

    def say(self, text: str) -> None:
        """Tell people something; programs that asked for JSON are not disturbed."""
        if not self.as_json:
            self.out.print(text, markup=False)

    def remark(self, text: str, facts: Mapping[str, Any]) -> None:
        """Tell on stderr what isn't part of the answer: a sentence, or its facts as JSON."""
        if self.as_json:
            self.err.file.write(json.dumps(facts, default=str, ensure_ascii=False) + "\n")
        else:
            self.err.print(text, markup=False)

    def waiting(self, text: str) -> AbstractContextManager[Any]:
        """Show that something takes a while, on a terminal."""
        if self.as_json or not self.err.is_terminal:
            return nullcontext()
        return self.err.status(text)

    @property
    def can_ask(self) -> bool:
        """Whether somebody is there to answer."""
        return not self.as_json and sys.stdin.isatty() and self._stdout.isatty()

    def confirm(self, question: str) -> bool:
        """Ask on a terminal; where nobody can answer, that is a no."""
        if not self.can_ask:
            return False
        return bool(Confirm.ask(question, console=self.err, default=False))

    def choose(self, question: str, answers: Mapping[str, str]) -> str:
        """Ask for one of the answers, by its beginning, and return what it stands for.

        The first one is what no answer means, and what is meant where nobody can answer.
        """
        first = next(iter(answers))
        while self.can_ask:
            shown = ", ".join(answers)
            said = Prompt.ask(f"{question} {shown}", console=self.err, default=first)
            for name, meaning in answers.items():
                if said and name.startswith(said.strip().lower()):
                    return meaning
        return answers[first]

    @contextmanager
    def progress(self, text: str, total: int) -> Iterator[Callable[[], object]]:
        """Show how many of `total` are done, on a terminal; call what is given for each of them."""
        if self.as_json or not self.err.is_terminal:
            yield lambda: None
            return
        with Progress(console=self.err, transient=True) as shown:
            bar = shown.add_task(text, total=total)
            yield lambda: shown.advance(bar)

    @contextmanager
    def share(self, text: str) -> Iterator[Callable[[float], object]]:
        """Show how much is done, on a terminal; call what is given with the share, 0 to 1."""
        if self.as_json or not self.err.is_terminal:
            yield lambda share: None
            return
        with Progress(console=self.err, transient=True) as shown:
            bar = shown.add_task(text, total=1.0)
            yield lambda share: shown.update(bar, completed=share)

    def show_problem(self, problem: Problem) -> None:
        """Print a problem on stderr: code, field, sentence, remedy."""
        if self.as_json:
            self.err.file.write(json.dumps({"error": problem.as_dict()}, ensure_ascii=False) + "\n")
            return
        where = f" ({problem.field})" if problem.field else ""
        self.err.print(
            f"{problem.code}{where}: {make_visible(str(problem))}", style="red", markup=False
        )
        if problem.remedy:
            self.err.print(f"→ {problem.remedy}", markup=False)


class CommandGroup(BaseCommand):
    """A Django command whose first argument is a verb.

    `verb_sources` are tuples of verbs as `module:TUPLE`, which are imported when they are needed.
    """

    verb_sources: ClassVar[Sequence[str]] = ()
    requires_system_checks: list[str] = []

    @cached_property
    def verbs(self) -> tuple[CommandVerb, ...]:
        """The verbs, in the order of their sources."""
        return tuple(verb for source in self.verb_sources for verb in resolve_name(source))

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare a subparser for each verb."""
        found = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        for verb in self.verbs:
            sub = found.add_parser(
                verb.name,
                help=verb.help,
                description=verb.help,
                epilog=_format_examples(verb.examples),
                formatter_class=argparse.RawDescriptionHelpFormatter,
                called_from_command_line=True,
            )
            verb.declare(sub)
            sub.add_argument("--org", metavar="SLUG", help="organization (default: the only one)")
            sub.add_argument("--json", action="store_true", help="print JSON for programs")
            sub.set_defaults(run=verb.run)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the verb; a problem is shown and becomes exit status 1."""
        cli = CommandContext(
            org=options["org"],
            as_json=options["json"],
            stdout=self.stdout._out,
            stderr=self.stderr._out,
        )
        try:
            options["run"](cli, argparse.Namespace(**options))
        except Problem as problem:
            cli.show_problem(problem)
            sys.exit(1)
        except CommandFailed:
            sys.exit(1)
        except DatabaseError:
            lacking = _find_database_problem()
            if lacking is None:
                raise
            cli.show_problem(lacking)
            sys.exit(1)


def _find_database_problem() -> ServiceUnavailable | None:
    """Return what a database that can't be worked with lacks; None where it lacks nothing."""
    fault = find_readiness_problem()
    if not fault:
        return None
    remedy = "`bonobot up` applies them, too." if "migrate" in fault else "See `bonobot doctor`."
    return ServiceUnavailable(f"{fault}.", code="database_unavailable", remedy=remedy)


def build_table(*columns: str, rows: Sequence[Sequence[Any]], empty: str) -> Any:
    """Return a table, or the sentence `empty` that says what to do first."""
    if not rows:
        return empty
    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        # As texts: what a server says in `[…]` is no markup.
        drawn.add_row(*(Text(make_visible("" if cell is None else str(cell))) for cell in row))
    return drawn


def parse_time(text: str) -> datetime:
    """Return the time that an option names: `24h`, `7d`, `30m` ago, or an ISO date or time."""
    units = {"d": "days", "h": "hours", "m": "minutes"}
    if text[:-1].isdigit() and text[-1:] in units:
        return timezone.now() - timedelta(**{units[text[-1]]: int(text[:-1])})
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else timezone.make_aware(found)


def parse_pairs(given: Sequence[str] | None, field: str) -> dict[str, str]:
    """Return `K=V` options as a mapping, `${VAR}` filled from the caller's environment."""
    found = {}
    for item in given or ():
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise InvalidInput(f"{item.partition('=')[0]!r} is not NAME=VALUE.", field=field)
        found[name] = expand(value, field)
    return found


def expand(text: str, field: str) -> str:
    """Fill `${VAR}` and `${VAR:-default}` from the caller's environment.

    Raises `Invalid` (code `undefined_variable`): undefined, empty, or one of Bonobot's own.
    """
    filled, missing = placeholders.fill(text, os.environ)
    if missing:
        raise InvalidInput(
            f"The variable {missing[0].name} is not defined here.",
            code="undefined_variable",
            field=field,
            remedy="Set it before the command (Bonobot's own variables are never handed on).",
        )
    return filled


def _build_console(stream: Any, *, width: int | None = None) -> Console:
    """Return a console; with `NO_COLOR` one that writes no escape sequence, not even for bold."""
    if os.environ.get("NO_COLOR"):
        return Console(
            file=stream, highlight=False, width=width, color_system=None, force_terminal=False
        )
    return Console(file=stream, highlight=False, width=width)


def _format_examples(lines: Sequence[str]) -> str:
    return "examples:\n" + "\n".join(f"  bonobot {line}" for line in lines) if lines else ""


SHORTEST_INTERVAL_S = 0.5

Look = Callable[[], list[dict[str, Any]]]
Draw = Callable[[list[dict[str, Any]]], Any]


def add_watch_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--watch", action="store_true", help="show it anew until Ctrl-C")
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="of --watch")


def show(cli: CommandContext, options: argparse.Namespace, look: Look, draw: Draw) -> None:
    """Show what `look` finds, once or until Ctrl-C."""
    if not options.watch:
        found = look()
        cli.emit(found, draw(found))
        return
    try:
        _watch(cli, _poll_rows(look, max(options.interval, SHORTEST_INTERVAL_S)), draw)
    except KeyboardInterrupt:
        return


def _watch(cli: CommandContext, looks: Iterator[list[dict[str, Any]]], draw: Draw) -> None:
    """Show each look; for programs as one line of JSON, in a file or pipe one below the other."""
    if cli.as_json or not cli.out.is_terminal:
        for found in looks:
            if cli.as_json:
                cli.out.file.write(json.dumps(found, default=str, ensure_ascii=False) + "\n")
            else:
                cli.out.print(draw(found))
            cli.out.file.flush()
        return
    with Live(console=cli.out, auto_refresh=False) as live:
        for found in looks:
            live.update(draw(found), refresh=True)


def _poll_rows(look: Look, interval_s: float) -> Iterator[list[dict[str, Any]]]:
    while True:
        yield look()
        pause(interval_s)


def pause(seconds: float) -> None:
    """Wait; Ctrl-C ends it."""
    threading.Event().wait(seconds)


STDIN = "-"


def read_inputs(text: str, field: str) -> dict[str, Any]:
    """Return one JSON object, `-` read from standard input; raises `Invalid` naming the field."""
    try:
        found = json.loads(sys.stdin.read() if text == STDIN else text)
    except ValueError as error:
        raise InvalidInput(
            f"The inputs are not valid JSON: {error}",
            code="broken_json",
            field=field,
            remedy="""Write one object: '{"title": "disk full"}'.""",
        ) from None
    if isinstance(found, dict):
        return found
    raise InvalidInput("The inputs are no JSON object.", field=field, remedy="Write {…}.")


def read_text(name: str | None, field: str = "--file") -> str | None:
    """Return a text file's content, `-` read from standard input; None where none is named.

    Raises `Invalid` (`unusable_file`) naming the field.
    """
    if name is None:
        return None
    try:
        return sys.stdin.read() if name == STDIN else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{name!r} can't be read: {error}",
            code="unusable_file",
            field=field,
            remedy="Name a text file.",
        ) from None
