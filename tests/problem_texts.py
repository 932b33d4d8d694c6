"""What the product says to people when it refuses or fails, found in the sources.

That is what a `Problem` gets as its detail and its remedy, and what a class takes as `reason`,
`detail` or `remedy`: written there, or handed on by a function that makes one of it.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.architecture.sources import Source

PROBLEM = "Problem"
TEXTS = ("detail", "remedy", "reason")
# Read by programs, in terminals and in logs alone, which speak English.
ENGLISH = (
    *("bonobot.maintenance.backups", "bonobot.checks", "bonobot.core.cli"),
    *("bonobot.core.db.database_url", "bonobot.core.environment"),
    *("bonobot.management", "agents.config_file", "bonobot.monitoring.health"),
    *("agents.cli", "agents.console.cli", "mcp_servers.cli", "bonobot.accounts.cli"),
    *("bonobot.ledger.cli", "bonobot.notifications.cli", "bonobot.maintenance.cli"),
    *("bonobot.processes", "agents.organization_offboarding", "agents.row_gauges"),
    "agents.gateway",  # but for what it tells screens about programs: see `english`
)
ON_SCREENS = ("agents.gateway.client_config_snippets",)
# Parameters and variables that hand such a text on.
HANDED = frozenset({*TEXTS, "how", "what", "why"})
Function = ast.FunctionDef | ast.AsyncFunctionDef
Makers = dict[str, set[str | int]]


def english(source: Source) -> bool:
    """Tell whether what a module says is in English for all."""
    return source.inside(*ENGLISH) and not source.inside(*ON_SCREENS)


class Wording(NamedTuple):
    """An expression that becomes a text for people."""

    source: Source
    node: ast.expr


def wordings(sources: Iterable[Source]) -> Iterator[Wording]:
    """Yield every expression that becomes a text for people, and what it is put together of."""
    sources = tuple(one for one in sources if not english(one))
    classes = _classes(sources)
    public = {name: at for name, at in _functions(sources).items() if not name.startswith("_")}
    for source in sources:
        makers = public | _functions([source]) | classes
        texts = _handed(source.nodes)
        found = [*_given(source.nodes, makers), *_titles(source.nodes, makers)]
        yield from (Wording(source, node) for node in _parts(found, texts))


def sentences(sources: Iterable[Source]) -> set[str]:
    """Return what is said without holes: a word or more, not a code."""
    texts = (one.node.value for one in wordings(sources) if isinstance(one.node, ast.Constant))
    return {
        text
        for text in texts
        if isinstance(text, str) and (" " in text.strip() or text.endswith("."))
        if sum(letter.isalpha() for letter in text) > 2
    }


def glued(sources: Iterable[Source]) -> Iterator[Wording]:
    """Yield texts that are put together where they are said: nobody could translate those."""
    for one in wordings(sources):
        if isinstance(one.node, ast.JoinedStr):
            words = [part.value for part in one.node.values if isinstance(part, ast.Constant)]
            if sum(letter.isalpha() for word in words for letter in str(word)) > 2:
                yield one
        elif _formatted(one.node):
            yield one


def _formatted(node: ast.expr) -> bool:
    template: ast.expr | None = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        template = node.left
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        template = node.func.value if node.func.attr == "format" else None
    return isinstance(template, ast.Constant) and isinstance(template.value, str)


def _classes(sources: Iterable[Source]) -> Makers:
    """Return where classes take texts: positions and names of arguments."""
    nodes = [node for source in sources for node in source.nodes if isinstance(node, ast.ClassDef)]
    problems = {PROBLEM}
    while more := {node.name for node in nodes if _bases(node) & problems} - problems:
        problems |= more
    found: Makers = {name: {0, *TEXTS} for name in problems}
    for node in nodes:
        lines = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
        fields = [one.id for one in lines if isinstance(one, ast.Name)]
        places = {number for number, name in enumerate(fields) if name in TEXTS}
        if places and node.name not in found:
            found[node.name] = places | set(TEXTS)
    return found


def _bases(node: ast.ClassDef) -> set[str]:
    return {getattr(base, "id", getattr(base, "attr", "")) for base in node.bases}


def _functions(sources: Iterable[Source]) -> Makers:
    """Return where functions take texts, by the names of their parameters."""
    found: Makers = {}
    for source in sources:
        for node in source.nodes:
            if not isinstance(node, Function):
                continue
            names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
            names = names[1:] if names[:1] in (["self"], ["cls"]) else names
            every = {*names, *(one.arg for one in node.args.kwonlyargs)}
            handed = every & (HANDED | _filled_in(node))
            if handed and node.name != "__init__":
                places = {names.index(name) for name in handed if name in names}
                found.setdefault(node.name, set()).update(places, handed)
    return found


def _filled_in(function: Function) -> set[str]:
    """Return the names that a function fills into a message as a text: `what=name`."""
    return {
        keyword.value.id
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "format_message"
        for keyword in node.keywords
        if keyword.arg in HANDED and isinstance(keyword.value, ast.Name)
    }


def _given(
    nodes: Iterable[ast.AST], makers: Mapping[str, Collection[str | int]]
) -> Iterator[ast.expr]:
    """Yield what the calls among nodes give as texts."""
    for node in nodes:
        if isinstance(node, ast.Call):
            places = makers.get(getattr(node.func, "id", getattr(node.func, "attr", "")), TEXTS)
            yield from (one for number, one in enumerate(node.args) if number in places)
            yield from (one.value for one in node.keywords if one.arg in places)


def _titles(
    nodes: Iterable[ast.AST], makers: Mapping[str, Collection[str | int]]
) -> Iterator[ast.expr]:
    """Yield what problems say of themselves: their titles, and what they hand to `Problem`."""
    for node in nodes:
        if isinstance(node, ast.ClassDef) and "detail" in makers.get(node.name, ()):
            for line in node.body:
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "title":
                    yield line.value
            yield from _given(ast.walk(node), {"__init__": {0, *TEXTS}})


def _handed(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """Return what names of texts, and constants, stand for in a module."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in HANDED or name.isupper():
                found.setdefault(name, []).append(node.value)
    return found


def _parts(nodes: Iterable[ast.expr], texts: Mapping[str, list[ast.expr]]) -> Iterator[ast.expr]:
    """Yield what expressions can come to: both branches of a condition, parts of a sum."""
    seen: set[int] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, ast.IfExp):
            todo += [node.body, node.orelse]
        elif isinstance(node, ast.BoolOp):
            todo += node.values
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            todo += [node.left, node.right]
        elif isinstance(node, ast.Name):
            todo += texts.get(node.id, [])
        else:
            yield node
