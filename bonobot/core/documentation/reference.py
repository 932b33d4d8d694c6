"""Generate the pages of the reference from the installed code: settings, commands, error codes.

The code of errors is read from the syntax trees of the sources: it stands in a call
(`Conflict("…", code="…", remedy="…")`) or is the default of a class of problems. Values in a
message are shown as `…`.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bonobot.core import environment
from bonobot.core.documentation.learn_more import ERRORS_PAGE

if TYPE_CHECKING:
    from argparse import ArgumentParser

SETTINGS_INTRODUCTION = """# Settings

Environment variables. To try Bonobot, you don't need to set any. To read a value from a file, set
`NAME_FILE` to its path. An empty value counts as not set. If a value is invalid, Bonobot stops with
a message that names the variable. `.env.example` is the same list, for you to copy.

"""
COMMANDS_INTRODUCTION = """# Commands

The output of `bonobot COMMAND --help`. Every subcommand accepts `--json` and `--org SLUG`. Exit
status: 0 success, 1 denied or failed, 2 invalid usage.

"""
ERRORS_INTRODUCTION = """# Error codes

Every error has a code, a message, and a remedy. The codes are the same for models, in REST (RFC
9457 problem details, with the status), on the command line (exit status 1), in the admin, in the
audit log, and at the gateway. This page is generated from the source code: `…` stands for a value
in the message.

"""
_SETTINGS_SECTION = re.compile(r"^# --- (?P<title>.+?) ---$")
_VARIABLE = re.compile(r"^#(?P<name>[A-Z_]+)=(?P<value>.*)$")
_HELP_WIDTH = 98
_PACKAGES = ("bonobot", "mcp_servers", "agents")
_CODE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_ROOT_CLASS = "Problem"
# To parse only the top-level statements of a module that can create a problem.
_CLASS = re.compile(r"^ *class (\w+)\(([^)]*)\)", re.MULTILINE)
_CLASS_NAME = re.compile(r"\b[A-Z]\w+(?=\()")
_STATEMENT = re.compile(r"^(?=[A-Za-z_@])", re.MULTILINE)

# The root folder of the packages, and the one of `.env.example`.
BuildPage = Callable[[Path, Path], str]


def format_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose cells can't break out of it; blank without rows."""
    lines = ["| " + " | ".join(_format_cell(text) for text in row) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *lines, ""])


def format_code(text: object) -> str:
    """Return a text as inline code, blank for a blank one."""
    return f"`{text}`" if str(text) else ""


def format_block(text: str, language: str = "") -> str:
    """Return a block of code."""
    return f"```{language}\n{text.rstrip()}\n```\n"


def _format_cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def build_settings_page(_sources: Path, folder: Path) -> str:
    """Return the settings as `.env.example` describes them, with their types."""
    types = environment.list_variables()
    text = (folder / ".env.example").read_text(encoding="utf-8")
    parts = [SETTINGS_INTRODUCTION]
    for title, rows in _list_settings(text):
        cells = (
            (format_code(name), types.get(name, ""), format_code(value), description)
            for name, value, description in rows
        )
        table = format_table(("variable", "type", "default", "description"), cells)
        parts.append(f"## {title}\n\n{table}\n")
    return "".join(parts)


def _list_settings(text: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the sections; a comment describes all variables right below it."""
    title, description, rows = "", "", list[tuple[str, str, str]]()
    is_after_variable = True
    for line in text.splitlines():
        if match := _SETTINGS_SECTION.match(line):
            if title:
                yield title, rows
            title, description, rows = match["title"], "", []
        elif match := _VARIABLE.match(line):
            rows.append((match["name"], match["value"], description))
            is_after_variable = True
        elif line.startswith("# "):
            description = line[2:] if is_after_variable else f"{description} {line[2:]}"
            is_after_variable = False
    yield title, rows


def build_commands_page(_sources: Path, _folder: Path) -> str:
    """Return every command with its verbs and their help."""
    from django.core.management import get_commands, load_command_class

    parts = [COMMANDS_INTRODUCTION]
    for name, app in sorted(get_commands().items()):
        if app == "bonobot":
            command = load_command_class(app, name)
            parts.append(f"## bonobot {name}\n\n{command.help}\n\n")
            parts += _list_help_texts(name, command)
    return "".join(parts)


def _list_help_texts(name: str, command: Any) -> Iterator[str]:
    from bonobot.core.cli.command_group import CommandGroup

    parser = command.create_parser("bonobot", name)
    if not isinstance(command, CommandGroup):
        yield format_block(_format_help(parser)) + "\n"
        return
    verbs = next(action for action in parser._actions if action.dest == "verb").choices
    for verb in command.verbs:
        help_text = format_block(_format_help(verbs[verb.name]))
        yield f"### bonobot {name} {verb.name}\n\n{help_text}\n"


def _format_help(parser: "ArgumentParser") -> str:
    formatter: Any = parser.formatter_class
    parser.formatter_class = lambda prog: formatter(prog=prog, width=_HELP_WIDTH)
    return parser.format_help()


@dataclass
class ProblemClass:
    """A class in the sources: its bases, and its code, status and title if it has them."""

    bases: tuple[str, ...]
    code: str = ""
    status: int = 0
    title: str = ""


@dataclass
class ErrorDescription:
    """What the sources say about a code."""

    statuses: set[int] = field(default_factory=set)
    messages: dict[str, None] = field(default_factory=dict)
    remedies: dict[str, None] = field(default_factory=dict)


def build_errors_page(sources: Path, _folder: Path) -> str:
    """Return the error codes with their status, messages and remedies."""
    texts = [
        path.read_text(encoding="utf-8")
        for package in _PACKAGES
        for path in sorted((sources / package).rglob("*.py"))
        if "migrations" not in path.parts
    ]
    problem_names = _find_problem_names(texts)
    classes: dict[str, ProblemClass] = {}
    calls: list[ast.Call] = []
    for text in texts:
        nodes = list(ast.walk(_parse_problems(text, problem_names)))
        classes.update(_list_classes(nodes))
        calls += _list_calls(nodes)
    rows = (
        (
            format_code(code),
            ", ".join(str(status) for status in sorted(description.statuses)),
            " / ".join(description.messages),
            " / ".join(description.remedies),
        )
        for code, description in sorted(describe_errors(classes, calls).items())
    )
    return ERRORS_INTRODUCTION + format_table(("code", "HTTP", "message", "remedy"), rows)


def _find_problem_names(texts: Iterable[str]) -> set[str]:
    """Return the names of the classes of problems in all sources."""
    bases = {
        match[1]: set(re.findall(r"\w+", match[2]))
        for text in texts
        for match in _CLASS.finditer(text)
    }
    names = {_ROOT_CLASS}
    while added := {name for name in bases.keys() - names if not names.isdisjoint(bases[name])}:
        names |= added
    return names


def _parse_problems(text: str, problem_names: set[str]) -> ast.Module:
    """Return the tree of the statements that can create a problem.

    Parsing all sources takes seconds, and these are a fifth of them.
    """
    if problem_names.isdisjoint(_CLASS_NAME.findall(text)):
        return ast.Module([], [])
    statements = [
        statement
        for statement in _STATEMENT.split(text)
        if not problem_names.isdisjoint(_CLASS_NAME.findall(statement))
    ]
    try:
        return ast.parse("".join(statements))
    except SyntaxError:  # a line of a text begins like a statement
        return ast.parse(text)


def describe_errors(
    classes: Mapping[str, ProblemClass], calls: Iterable[ast.Call]
) -> dict[str, ErrorDescription]:
    """Return each code with its statuses, messages and remedies."""
    descriptions: defaultdict[str, ErrorDescription] = defaultdict(ErrorDescription)
    for name, problem_class in classes.items():
        if problem_class.code and _is_problem(name, classes):
            description = descriptions[problem_class.code]
            description.statuses.add(_find_status(name, classes))
            if problem_class.title:
                description.messages[f"{problem_class.title}."] = None
    for call in calls:
        _add_call(call, classes, descriptions)
    return dict(descriptions)


def _add_call(
    call: ast.Call,
    classes: Mapping[str, ProblemClass],
    descriptions: defaultdict[str, ErrorDescription],
) -> None:
    name = _get_called_name(call)
    arguments = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    code = arguments.get("code") or ast.Constant(_find_inherited(name, classes, "code"))
    if not isinstance(code, ast.Constant) or not _CODE.fullmatch(str(code.value)):
        return
    if not _is_problem(name, classes):
        return
    description = descriptions[str(code.value)]
    status = arguments.get("status")
    is_constant = isinstance(status, ast.Constant)
    description.statuses.add(
        int(str(status.value)) if is_constant else _find_status(name, classes)  # type: ignore[union-attr]
    )
    message = call.args[0] if call.args else arguments.get("detail")
    for node, texts in (
        (message, description.messages),
        (arguments.get("remedy"), description.remedies),
    ):
        if text := _read_text(node):
            texts[text] = None


def _read_text(node: ast.AST | None) -> str:
    """Return a text with `…` for values; blank if it isn't a literal."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
        text = "".join(parts)
        return text if re.search(r"[a-z]{3}", text) else ""
    if isinstance(node, ast.Call) and _get_called_name(node) == "format_message":
        return re.sub(r"\{[^}]*\}", "…", _read_text(node.args[0]))
    return ""


def _list_calls(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    """Yield the calls that can create a problem: those of a class."""
    for node in nodes:
        if isinstance(node, ast.Call) and _get_called_name(node)[:1].isupper():
            yield node


def _get_called_name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _list_classes(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ProblemClass]]:
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
        problem_class = ProblemClass(bases)
        for line in node.body:
            if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
                for target in line.targets:
                    if isinstance(target, ast.Name) and hasattr(problem_class, target.id):
                        setattr(problem_class, target.id, line.value.value)
        yield node.name, problem_class


def _is_problem(name: str, classes: Mapping[str, ProblemClass]) -> bool:
    if name == _ROOT_CLASS:
        return True
    return name in classes and any(_is_problem(base, classes) for base in classes[name].bases)


def _find_inherited(name: str, classes: Mapping[str, ProblemClass], attribute: str) -> Any:
    problem_class = classes.get(name)
    if problem_class is None:
        return ""
    return getattr(problem_class, attribute) or next(
        (
            value
            for base in problem_class.bases
            if (value := _find_inherited(base, classes, attribute))
        ),
        "",
    )


def _find_status(name: str, classes: Mapping[str, ProblemClass]) -> int:
    return int(_find_inherited(name, classes, "status") or 400)


GENERATED_PAGES: Mapping[str, BuildPage] = {
    "reference/settings": build_settings_page,
    "reference/commands": build_commands_page,
    ERRORS_PAGE: build_errors_page,
}
