"""What the audit's actions are called: their codes, found where the sources record them."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from bonobot.ledger.audit.action_titles import get_action_title
from tests.architecture.sources import Source

PARAMETER = "action"
CODE = re.compile(r"[a-z]+(?:_[a-z]+)+")
# Of argparse, which has a parameter of that name, too.
OTHERS = frozenset({"store_true", "store_false"})
Function = ast.FunctionDef | ast.AsyncFunctionDef


def actions(sources: Iterable[Source]) -> set[str]:
    """Return the codes: what a parameter or variable `action` is, or `_action` returns."""
    sources = tuple(sources)
    places = dict(_places(sources))
    found = {code for source in sources for code in _codes(source, places)}
    return found - OTHERS


def called(code: str) -> str:
    """Return what an action is called in English, which the catalog translates."""
    return get_action_title(code)


def _places(sources: Iterable[Source]) -> Iterator[tuple[str, set[int]]]:
    """Yield where functions take an action, by their names."""
    found: dict[str, set[int]] = {}
    for source in sources:
        for node in source.nodes:
            if isinstance(node, Function):
                names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
                names = names[1:] if names[:1] in (["self"], ["cls"]) else names
                if PARAMETER in names:
                    found.setdefault(node.name, set()).add(names.index(PARAMETER))
    yield from found.items()


def _codes(source: Source, places: Mapping[str, set[int]]) -> Iterator[str]:
    named = {
        target.id: node.value.value
        for node in source.tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in source.nodes:
        if isinstance(node, Function) and node.name == f"_{PARAMETER}":
            yield from _texts(node, named)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == PARAMETER:
            yield from _texts(node.value, named)
        elif isinstance(node, ast.Call):
            taken = places.get(getattr(node.func, "id", getattr(node.func, "attr", "")), ())
            given = [one for number, one in enumerate(node.args) if number in taken]
            given += [one.value for one in node.keywords if one.arg == PARAMETER]
            for one in given:
                yield from _texts(one, named)


def _texts(node: ast.AST, named: Mapping[str, object]) -> Iterator[str]:
    for one in ast.walk(node):
        text = one.value if isinstance(one, ast.Constant) else None
        if isinstance(one, ast.Name):
            text = named.get(one.id)
        if isinstance(text, str) and CODE.fullmatch(text):
            yield text
