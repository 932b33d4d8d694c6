"""The action codes of the audit log, found where the sources record them."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from bonobot.ledger.audit.action_titles import get_action_title
from tests.architecture.sources import Source

PARAMETER = "action"
CODE = re.compile(r"[a-z]+(?:_[a-z]+)+")
# argparse has a parameter of that name, too.
OTHERS = frozenset({"store_true", "store_false"})
Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_actions(sources: Iterable[Source]) -> set[str]:
    """Return the codes that are passed or assigned as `action`, or returned by `_action`."""
    sources = tuple(sources)
    places = dict(_find_parameters(sources))
    codes = {code for source in sources for code in _find_codes(source, places)}
    return codes - OTHERS


def get_title(code: str) -> str:
    """Return the English title of an action, which the catalog translates."""
    return get_action_title(code)


def _find_parameters(sources: Iterable[Source]) -> Iterator[tuple[str, set[int]]]:
    """Yield the positions of the parameter `action`, by function name."""
    positions: dict[str, set[int]] = {}
    for source in sources:
        for node in source.nodes:
            if isinstance(node, Function):
                names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
                names = names[1:] if names[:1] in (["self"], ["cls"]) else names
                if PARAMETER in names:
                    positions.setdefault(node.name, set()).add(names.index(PARAMETER))
    yield from positions.items()


def _find_codes(source: Source, places: Mapping[str, set[int]]) -> Iterator[str]:
    constants = {
        target.id: node.value.value
        for node in source.tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in source.nodes:
        if isinstance(node, Function) and node.name == f"_{PARAMETER}":
            yield from _find_texts(node, constants)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == PARAMETER:
            yield from _find_texts(node.value, constants)
        elif isinstance(node, ast.Call):
            positions = places.get(getattr(node.func, "id", getattr(node.func, "attr", "")), ())
            arguments = [
                argument for number, argument in enumerate(node.args) if number in positions
            ]
            arguments += [argument.value for argument in node.keywords if argument.arg == PARAMETER]
            for argument in arguments:
                yield from _find_texts(argument, constants)


def _find_texts(node: ast.AST, constants: Mapping[str, object]) -> Iterator[str]:
    for child in ast.walk(node):
        text = child.value if isinstance(child, ast.Constant) else None
        if isinstance(child, ast.Name):
            text = constants.get(child.id)
        if isinstance(text, str) and CODE.fullmatch(text):
            yield text
