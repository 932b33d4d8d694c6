"""Command groups: parsing, output and exit status.

Every verb acts as the platform administrator of this host in `--org SLUG` (default: the only
organization) and prints a table for people or, with `--json`, JSON for programs. Exit status: 0
success, 1 failure, 2 wrong usage. Problems are printed to stderr with code, field and remedy.
"""

import argparse
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError
from django.utils import timezone

from bonobot import __version__
from bonobot.core.cli.extension_points import command_principal, readiness_check
from bonobot.core.cli.text_table import TextTable
from bonobot.core.problems import Conflict, InvalidInput, Problem, ServiceUnavailable
from bonobot.core.text import placeholders
from bonobot.core.text.untrusted_text import make_visible

if TYPE_CHECKING:
    from django.db.models import Model
    from rich.console import Console

Row = TypeVar("Row", bound="Model")

# The name of this client in the audit log.
CLIENT_NAME = f"bonobot-cli/{__version__}"

# Output to a file or pipe isn't wrapped at the terminal's width.
FILE_WIDTH = 200

# With one of these, rich handles a pipe as a terminal.
TERMINAL_VARIABLES = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})

# A command of a group in a sentence, up to its end: `bonobot GROUP VERB …`.
PRINTED_COMMAND = re.compile(
    r"\bbonobot (?!completion )[a-z-]+ [a-z][a-z-]*(?:(?!`|\. |\.$|   |\n).)*", re.MULTILINE
)

AddArguments = Callable[[argparse.ArgumentParser], object]


class Argument:
    """An argument of a verb, written as its help shows it, with the options of `add_argument`.

    `NAME` is positional, `--url URL` takes a value, `--force` is a flag, and `--[no-]images` has
    the values true and false, or None if it is missing. A name in lower case is shown as it is.
    """

    def __init__(self, usage: str, help_text: str, **options: Any) -> None:
        name, _, metavar = usage.partition(" ")
        if metavar:
            options["metavar"] = metavar
        elif name.startswith("--[no-]"):
            name, options["action"] = name.replace("[no-]", ""), argparse.BooleanOptionalAction
        elif name.startswith("-"):
            options.setdefault("action", "store" if "choices" in options else "store_true")
        elif name.isupper():
            options["metavar"] = name
            name = options.pop("dest", name.lower().replace("-", "_"))
        self._name = name
        self._options = options | {"help": help_text}

    def __call__(self, parser: argparse.ArgumentParser) -> None:
        """Add the argument to a parser."""
        parser.add_argument(self._name, **self._options)


class Alternatives:
    """Arguments of which a command has at most one, or exactly one if `required`."""

    def __init__(self, *arguments: AddArguments, required: bool = False) -> None:
        self._arguments = arguments
        self._required = required

    def __call__(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to a parser."""
        group: Any = parser.add_mutually_exclusive_group(required=self._required)
        add_arguments(group, self._arguments)


def add_arguments(parser: argparse.ArgumentParser, arguments: Sequence[AddArguments]) -> None:
    for add_argument in arguments:
        add_argument(parser)


@dataclass(frozen=True)
class CommandVerb:
    """One verb of a group: its name, help, function, arguments and examples.

    `arguments` are `Argument`s, `Alternatives`, and functions that add to the parser what these
    can't express.

    `confirmation`: the question that is asked on a terminal before the verb runs, with the names of
    its arguments in braces. The verb then has the option `--yes`.
    """

    name: str
    help: str
    run: "Callable[[CommandContext, argparse.Namespace], None]"
    arguments: Sequence[AddArguments] = ()
    examples: Sequence[str] = ()
    confirmation: str = ""


class CommandFailed(Exception):
    """The verb failed and has printed why; the exit status is 1."""


class CommandContext:
    """The principal and the output of a verb."""

    def __init__(
        self, *, org: str | None, as_json: bool, stdout: Any, stderr: Any, no_color: bool = False
    ) -> None:
        self.as_json = as_json
        self._org = org
        self._principal: Any = None
        self._stdout = stdout
        self._stderr = stderr
        self._no_color = no_color

    @cached_property
    def out(self) -> "Console":
        if self._stdout.isatty():
            return _build_console(self._stdout, no_color=self._no_color)
        return _build_console(
            _UnpaddedFile(self._stdout), width=FILE_WIDTH, no_color=self._no_color
        )

    @cached_property
    def err(self) -> "Console":
        return _build_console(self._stderr, no_color=self._no_color)

    @property
    def is_terminal(self) -> bool:
        """Whether tables are aligned: stdout is a terminal, also without colors, or handled as one.

        Loads rich only if a variable asks for it.
        """
        if TERMINAL_VARIABLES.isdisjoint(os.environ):
            return bool(self._stdout.isatty())
        return self.out.is_terminal

    @property
    def principal(self) -> Any:
        """The platform administrator in the organization; raises `NotFound`, `InvalidInput`."""
        if self._principal is None:
            self._principal = command_principal.get()(self._org)
        return self._principal

    def get_row(self, model: type[Row], rows: Any = None, **lookup: Any) -> Row:
        """Return the organization's row, such as `get_row(Agent, slug=slug)`; raises `NotFound`.

        `rows` limits the rows that can be found.
        """
        searched_rows: Any = model._default_manager if rows is None else rows
        row: Row = searched_rows.get_or_404(self.principal.organization_id, **lookup)
        return row

    def emit(self, value: Any, rendered: Any = None) -> None:
        """Print `value` with `--json`, otherwise `rendered`."""
        if self.as_json:
            self._stdout.write(json.dumps(value, indent=2, default=str, ensure_ascii=False) + "\n")
        elif rendered is not None:
            self.print_result(rendered)

    def print_result(self, rendered: Any) -> None:
        """Print a result; a table as tab-separated lines unless stdout is a terminal."""
        if isinstance(rendered, str):  # instead of an empty table
            self.out.print(self._complete_commands(rendered), markup=False)
        elif isinstance(rendered, TextTable) and not self.is_terminal:
            self._stdout.writelines(f"{line}\n" for line in rendered.format_lines())
        else:
            self.out.print(rendered)

    def print_message(self, text: str) -> None:
        """Print a message unless `--json` is given."""
        if not self.as_json:
            self.out.print(self._complete_commands(text), markup=False)

    def _complete_commands(self, text: str) -> str:
        if self._org is None:
            return text
        option = f" --org {self._org}"
        return PRINTED_COMMAND.sub(
            lambda match: match[0] if " --org " in match[0] else match[0].rstrip() + option, text
        )

    def print_note(self, text: str, facts: Mapping[str, Any]) -> None:
        """Print a note to stderr: `text`, or `facts` with `--json`."""
        if self.as_json:
            self._stderr.write(json.dumps(facts, default=str, ensure_ascii=False) + "\n")
        else:
            self.err.print(self._complete_commands(text), markup=False)

    def show_spinner(self, text: str) -> AbstractContextManager[Any]:
        if self.as_json or not self.err.is_terminal:
            return nullcontext()
        return self.err.status(text)

    @property
    def can_ask(self) -> bool:
        """Whether the command runs interactively."""
        return not self.as_json and sys.stdin.isatty() and self._stdout.isatty()

    def confirm(self, question: str, *, default: bool = False) -> bool:
        """Ask yes or no on a terminal; return False without one."""
        if not self.can_ask:
            return False
        from rich.prompt import Confirm

        return bool(Confirm.ask(question, console=self.err, default=default))

    def choose(self, question: str, answers: Mapping[str, str]) -> str:
        """Ask for one of the answers, which may be abbreviated, and return its value.

        The first answer is the default, also without a terminal.
        """
        from rich.prompt import Prompt

        default = next(iter(answers))
        while self.can_ask:
            choices = ", ".join(answers)
            answer = Prompt.ask(f"{question} {choices}", console=self.err, default=default)
            for name, value in answers.items():
                if answer and name.startswith(answer.strip().lower()):
                    return value
        return answers[default]

    @contextmanager
    def show_progress(self, text: str, total: int) -> Iterator[Callable[[], object]]:
        """Show a progress bar on a terminal; call the yielded function for each finished item."""
        if self.as_json or not self.err.is_terminal:
            yield lambda: None
            return
        from rich.progress import Progress

        with Progress(console=self.err, transient=True) as progress_bar:
            task_id = progress_bar.add_task(text, total=total)
            yield lambda: progress_bar.advance(task_id)

    @contextmanager
    def show_percentage(self, text: str) -> Iterator[Callable[[float], object]]:
        """Show a progress bar on a terminal; call the yielded function with a value from 0 to 1."""
        if self.as_json or not self.err.is_terminal:
            yield lambda share: None
            return
        from rich.progress import Progress

        with Progress(console=self.err, transient=True) as progress_bar:
            task_id = progress_bar.add_task(text, total=1.0)
            yield lambda share: progress_bar.update(task_id, completed=share)

    def show_problem(self, problem: Problem) -> None:
        """Print a problem to stderr: code, field, sentence, remedy."""
        if self.as_json:
            self._stderr.write(json.dumps({"error": problem.as_dict()}, ensure_ascii=False) + "\n")
            return
        field_note = f" ({problem.field})" if problem.field else ""
        self.err.print(
            f"{problem.code}{field_note}: {make_visible(str(problem))}", style="red", markup=False
        )
        if problem.remedy:
            self.err.print(f"→ {self._complete_commands(str(problem.remedy))}", markup=False)


class CommandGroup(BaseCommand):
    """A Django command whose first argument is a verb.

    `verb_sources` has the names of the verbs in each tuple `module:TUPLE`, imported on demand.
    """

    verb_sources: ClassVar[Mapping[str, Sequence[str]]] = {}
    # The verb of the command line; blank if its parser needs all verbs, as for `--help`.
    verb_name = ""
    requires_system_checks: list[str] = []
    # Django's options for its own commands work here, too, but aren't in the help.
    suppressed_base_arguments: set[str] = {
        *("--version", "--verbosity", "--settings", "--pythonpath", "--traceback"),
        *("--no-color", "--force-color"),
    }

    @cached_property
    def verbs(self) -> tuple[CommandVerb, ...]:
        """The verbs, in the order of their sources."""
        return tuple(verb for source in self.verb_sources for verb in resolve_name(source))

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command line; for an unknown verb, suggest the one that is most like it."""
        verb_name = next(iter(argv[2:]), "-")
        names = [name for source_names in self.verb_sources.values() for name in source_names]
        if not verb_name.startswith("-") and verb_name not in names:
            program = f"bonobot {argv[1]}"
            close = difflib.get_close_matches(verb_name, names, n=1)
            suggestion = f" Did you mean `{program} {close[0]}`?" if close else ""
            self.stderr.write(
                f"`{program} {make_visible(verb_name, 80)}` doesn't exist.{suggestion}\n"
                f"→ Run `{program} --help` for all commands."
            )
            sys.exit(2)
        self.verb_name = verb_name if verb_name in names else ""
        super().run_from_argv(argv)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare a subparser for each verb."""
        subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        for verb in self._list_parsed_verbs():
            subparser = subparsers.add_parser(
                verb.name,
                help=verb.help,
                description=verb.help,
                epilog=_format_examples(verb.examples),
                formatter_class=argparse.RawDescriptionHelpFormatter,
                called_from_command_line=True,
            )
            add_arguments(subparser, verb.arguments)
            subparser.add_argument(
                "--org", metavar="SLUG", help="Slug of the organization (default: the only one)"
            )
            subparser.add_argument("--json", action="store_true", help="Print JSON")
            subparser.add_argument(
                "--no-color",
                action="store_true",
                default=argparse.SUPPRESS,  # keeps the value of the option before the verb
                help="Print without colors and styles",
            )
            if verb.confirmation:
                subparser.add_argument(
                    "--yes", action="store_true", help="Don't ask for confirmation"
                )
            subparser.set_defaults(run=verb.run, confirmation=verb.confirmation)

    def _list_parsed_verbs(self) -> tuple[CommandVerb, ...]:
        """Return the verb of the command line, or all if it has none."""
        for source, names in self.verb_sources.items():
            if self.verb_name in names:
                return tuple(verb for verb in resolve_name(source) if verb.name == self.verb_name)
        return self.verbs

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the verb; a problem is shown and becomes exit status 1."""
        cli = CommandContext(
            org=options["org"],
            as_json=options["json"],
            no_color=options["no_color"],
            stdout=self.stdout._out,
            stderr=self.stderr._out,
        )
        try:
            if options["confirmation"]:
                _confirm(cli, options)
            options["run"](cli, argparse.Namespace(**options))
        except Problem as problem:
            cli.show_problem(problem)
            sys.exit(1)
        except CommandFailed:
            sys.exit(1)
        except DatabaseError:
            database_problem = _find_database_problem()
            if database_problem is None:
                raise
            cli.show_problem(database_problem)
            sys.exit(1)


def _confirm(cli: CommandContext, options: Mapping[str, Any]) -> None:
    """Ask the verb's question on a terminal; raises `Conflict` (`not_confirmed`)."""
    question = make_visible(options["confirmation"].format_map(options))
    if cli.can_ask and not options["yes"] and not cli.confirm(question):
        raise Conflict("Nothing was changed.", code="not_confirmed", remedy="Confirm with --yes.")


def _find_database_problem() -> ServiceUnavailable | None:
    """Return the problem of a database that isn't ready, or None."""
    reason = readiness_check.get()()
    if not reason:
        return None
    remedy = (
        "You can also run `bonobot up`, which applies them."
        if "migrate" in reason
        else "Run `bonobot doctor` for details."
    )
    return ServiceUnavailable(f"{reason}.", code="database_unavailable", remedy=remedy)


def parse_time(text: str) -> datetime:
    """Return the time of an option: `24h`, `7d`, `30m` ago, or an ISO date or time."""
    units = {"d": "days", "h": "hours", "m": "minutes"}
    if text[:-1].isdigit() and text[-1:] in units:
        return timezone.now() - timedelta(**{units[text[-1]]: int(text[:-1])})
    parsed_time = datetime.fromisoformat(text)
    return parsed_time if parsed_time.tzinfo else timezone.make_aware(parsed_time)


def parse_pairs(pairs: Sequence[str] | None, field: str) -> dict[str, str]:
    """Return `K=V` options as a mapping; expand `${VAR}` from the caller's environment."""
    values = {}
    for item in pairs or ():
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise InvalidInput(
                f"{item.partition('=')[0]!r} isn't in the format NAME=VALUE.", field=field
            )
        values[name] = expand_variables(value, field)
    return values


def expand_variables(text: str, field: str) -> str:
    """Expand `${VAR}` and `${VAR:-default}` from the caller's environment.

    Raises `InvalidInput` (`undefined_variable`) for undefined, empty and Bonobot's own variables.
    """
    filled, missing = placeholders.fill_placeholders(text, os.environ)
    if missing:
        raise InvalidInput(
            f"The environment variable {missing[0].name} isn't set.",
            code="undefined_variable",
            field=field,
            remedy="Set it and try again. Bonobot's own variables can't be used here.",
        )
    return filled


class _UnpaddedFile:
    """A file or pipe that gets no spaces at the ends of lines, with which rich fills its width."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(re.sub(" +(?=\n)", "", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _build_console(stream: Any, *, width: int | None = None, no_color: bool = False) -> "Console":
    """Return a console; with `--no-color` or `NO_COLOR` it writes no escape sequences at all."""
    from bonobot.core.cli.pipe_console import PipeConsole

    if no_color or os.environ.get("NO_COLOR"):
        return PipeConsole(
            file=stream, highlight=False, width=width, color_system=None, force_terminal=False
        )
    return PipeConsole(file=stream, highlight=False, width=width)


def _format_examples(lines: Sequence[str]) -> str:
    return "examples:\n" + "\n".join(f"  bonobot {line}" for line in lines) if lines else ""


STDIN = "-"


def read_inputs(text: str, field: str) -> dict[str, Any]:
    """Parse a JSON object, read from stdin for `-`; raises `InvalidInput` with the field."""
    try:
        value = json.loads(sys.stdin.read() if text == STDIN else text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"The inputs aren't valid JSON: {error}",
            code="broken_json",
            field=field,
            remedy="""Enter a JSON object, such as '{"title": "disk full"}'.""",
        ) from None
    if isinstance(value, dict):
        return value
    raise InvalidInput(
        "The inputs must be a JSON object.", field=field, remedy="Enter a JSON object: {…}."
    )


def read_text(name: str | None, field: str = "--file") -> str | None:
    """Return the content of a text file, of stdin for `-`, or None without a name.

    Raises `InvalidInput` (`unusable_file`) with the field.
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
            remedy="Specify a text file that you can read.",
        ) from None


def parse_json_object(text: str, field: str) -> dict[str, Any]:
    """Parse a JSON object; raises `InvalidInput`."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    raise InvalidInput(
        "The value isn't a JSON object.", field=field, remedy='Use the format {"name": "value"}.'
    )
