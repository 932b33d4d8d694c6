"""The texts of errors that users read, found in the sources.

These are the `detail` and `remedy` of a `Problem`, and the `reason`, `detail` or `remedy` of other
classes: as literals, or passed on by a function that builds one.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.architecture.sources import Source

PROBLEM = "Problem"
TEXTS = ("detail", "remedy", "reason")
# Modules whose texts appear only in terminals, logs and programs, which are in English.
ENGLISH = (
    *("bonobot.maintenance.backups", "bonobot.checks", "bonobot.core.cli"),
    *("bonobot.core.db.database_url", "bonobot.core.environment"),
    *("bonobot.management", "agents.config_file", "bonobot.monitoring.health_endpoints"),
    *("agents.cli", "mcp_servers.cli", "bonobot.accounts.cli"),
    *("bonobot.ledger.cli", "bonobot.notifications.cli", "bonobot.maintenance.cli"),
    *("bonobot.processes", "agents.organization_offboarding", "agents.monitoring_gauges"),
    "agents.gateway",  # except for texts that screens show: see ON_SCREENS
)
ON_SCREENS = ("agents.gateway.client_config_snippets",)
# Parameters and variables that pass such a text on.
HANDED = frozenset({*TEXTS, "crash_reason", "how", "target_label", "what", "why"})
Function = ast.FunctionDef | ast.AsyncFunctionDef
Makers = dict[str, set[str | int]]


def is_english_only(source: Source) -> bool:
    """Return whether the texts of a module aren't translated."""
    return source.inside(*ENGLISH) and not source.inside(*ON_SCREENS)


class TextExpression(NamedTuple):
    """An expression that becomes a text for users."""

    source: Source
    node: ast.expr


def find_texts(sources: Iterable[Source]) -> Iterator[TextExpression]:
    """Yield every expression that becomes a text for users, or a part of one."""
    sources = tuple(source for source in sources if not is_english_only(source))
    classes = _find_classes(sources)
    functions = [_find_functions(source) for source in sources]
    public: Makers = {}
    for makers in functions:
        for name in makers:
            if not name.startswith("_"):
                public.setdefault(name, set()).update(makers[name])
    for source, own in zip(sources, functions, strict=True):
        makers = public | own | classes
        texts = _find_named_texts(source.nodes)
        found = [*_find_given_texts(source.nodes, makers), *_find_titles(source.nodes, makers)]
        yield from (TextExpression(source, node) for node in _expand_expressions(found, texts))


def find_sentences(sources: Iterable[Source]) -> set[str]:
    """Return the texts without placeholders, of one word or more, that aren't codes."""
    texts = (
        text_expression.node.value
        for text_expression in find_texts(sources)
        if isinstance(text_expression.node, ast.Constant)
    )
    return {
        text
        for text in texts
        if isinstance(text, str) and (" " in text.strip() or text.endswith("."))
        if sum(letter.isalpha() for letter in text) > 2
    }


def find_concatenations(sources: Iterable[Source]) -> Iterator[TextExpression]:
    """Yield texts that are concatenated or formatted in place, which can't be translated."""
    for expression in find_texts(sources):
        if isinstance(expression.node, ast.JoinedStr):
            words = [
                part.value for part in expression.node.values if isinstance(part, ast.Constant)
            ]
            if sum(letter.isalpha() for word in words for letter in str(word)) > 2:
                yield expression
        elif _is_formatted(expression.node):
            yield expression


def _is_formatted(node: ast.expr) -> bool:
    template: ast.expr | None = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        template = node.left
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        template = node.func.value if node.func.attr == "format" else None
    return isinstance(template, ast.Constant) and isinstance(template.value, str)


def _find_classes(sources: Iterable[Source]) -> Makers:
    """Return the positions and names of the text parameters of classes."""
    nodes = [node for source in sources for node in source.nodes if isinstance(node, ast.ClassDef)]
    problems = {PROBLEM}
    while more := {node.name for node in nodes if _get_base_names(node) & problems} - problems:
        problems |= more
    makers: Makers = {name: {0, *TEXTS} for name in problems}
    for node in nodes:
        lines = [
            statement.target for statement in node.body if isinstance(statement, ast.AnnAssign)
        ]
        fields = [statement.id for statement in lines if isinstance(statement, ast.Name)]
        places = {number for number, name in enumerate(fields) if name in TEXTS}
        if places and node.name not in makers:
            makers[node.name] = places | set(TEXTS)
    return makers


def _get_base_names(node: ast.ClassDef) -> set[str]:
    return {getattr(base, "id", getattr(base, "attr", "")) for base in node.bases}


def _find_functions(source: Source) -> Makers:
    """Return the positions and names of the text parameters of a module's functions."""
    makers: Makers = {}
    for node in source.nodes:
        if not isinstance(node, Function) or node.name == "__init__":
            continue
        names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        names = names[1:] if names[:1] in (["self"], ["cls"]) else names
        parameters = {*names, *(argument.arg for argument in node.args.kwonlyargs)}
        if not parameters:
            continue
        if text_parameters := parameters & (HANDED | _find_filled_names(node)):
            positions = {names.index(name) for name in text_parameters if name in names}
            makers.setdefault(node.name, set()).update(positions, text_parameters)
    return makers


def _find_filled_names(function: Function) -> set[str]:
    """Return the names that a function passes to `format_message` as a text: `what=name`."""
    return {
        keyword.value.id
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "format_message"
        for keyword in node.keywords
        if keyword.arg in HANDED and isinstance(keyword.value, ast.Name)
    }


def _find_given_texts(
    nodes: Iterable[ast.AST], makers: Mapping[str, Collection[str | int]]
) -> Iterator[ast.expr]:
    """Yield the arguments of calls that are texts."""
    for node in nodes:
        if isinstance(node, ast.Call):
            positions = makers.get(getattr(node.func, "id", getattr(node.func, "attr", "")), TEXTS)
            yield from (
                argument for number, argument in enumerate(node.args) if number in positions
            )
            yield from (argument.value for argument in node.keywords if argument.arg in positions)


def _find_titles(
    nodes: Iterable[ast.AST], makers: Mapping[str, Collection[str | int]]
) -> Iterator[ast.expr]:
    """Yield the titles of problem classes, and the texts that they pass to `Problem`."""
    for node in nodes:
        if isinstance(node, ast.ClassDef) and "detail" in makers.get(node.name, ()):
            for line in node.body:
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "title":
                    yield line.value
            yield from _find_given_texts(ast.walk(node), {"__init__": {0, *TEXTS}})


def _find_named_texts(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """Return the values of constants and of names for texts in a module."""
    texts: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in HANDED or name.isupper():
                texts.setdefault(name, []).append(node.value)
    return texts


def _expand_expressions(
    nodes: Iterable[ast.expr], texts: Mapping[str, list[ast.expr]]
) -> Iterator[ast.expr]:
    """Yield the possible values of expressions: both branches of a condition, parts of a sum."""
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
