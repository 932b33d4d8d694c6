"""The page of codes: every code that a problem may carry, read from the sources' syntax trees.

A code stands in a call (`Refused("…", code="…", remedy="…")`) or is the default of a kind of
problem. What follows in a sentence from what was asked is shown as `…`.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from docs.making.markdown import code, table

PACKAGES = ("bonobot", "mcp_servers", "agents")
CODE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
# Kinds that say nothing by themselves: their code is that of whoever raises them.
ROOT_KIND = "Problem"
HEAD = """# Error codes

Every error has a code, a message, and a remedy. The codes are the same for models, in REST (RFC
9457 problem details, with the status), on the command line (exit status 1), in the admin, in the
audit log, and at the gateway. This page is generated from the source code: `…` stands for a value
in the message.

"""


@dataclass
class Kind:
    """A class of problems: what it is derived from, its code, status and title."""

    bases: tuple[str, ...]
    code: str = ""
    status: int = 0
    title: str = ""


@dataclass
class Meaning:
    """What is known of a code."""

    statuses: set[int] = field(default_factory=set)
    texts: dict[str, None] = field(default_factory=dict)
    remedies: dict[str, None] = field(default_factory=dict)


def page(root: Path) -> str:
    """Return the page."""
    nodes = [
        node
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if "migrations" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call | ast.ClassDef)
    ]
    rows = (
        (
            code(name),
            ", ".join(str(status) for status in sorted(found.statuses)),
            " / ".join(found.texts),
            " / ".join(found.remedies),
        )
        for name, found in sorted(meanings(nodes).items())
    )
    return HEAD + table(("code", "HTTP", "message", "remedy"), rows)


def meanings(nodes: Sequence[ast.Call | ast.ClassDef]) -> dict[str, Meaning]:
    """Return each code with its statuses, sentences and remedies."""
    kinds = dict(_kinds(nodes))
    found: defaultdict[str, Meaning] = defaultdict(Meaning)
    for name, kind in kinds.items():
        if kind.code and _is_problem(name, kinds):
            found[kind.code].statuses.add(_status(name, kinds))
            if kind.title:
                found[kind.code].texts[f"{kind.title}."] = None
    for node in nodes:
        if isinstance(node, ast.Call):
            _note(node, kinds, found)
    return dict(found)


def _note(call: ast.Call, kinds: dict[str, Kind], found: dict[str, Meaning]) -> None:
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    given = {one.arg: one.value for one in call.keywords if one.arg}
    problem = _is_problem(name, kinds)
    said = given.get("code")
    if said is None and problem and name in kinds:
        said = ast.Constant(_inherited(name, kinds, "code"))
    if not problem or not isinstance(said, ast.Constant) or not CODE.fullmatch(str(said.value)):
        return
    meaning = found[str(said.value)]
    status = given.get("status")
    own = status.value if isinstance(status, ast.Constant) else _status(name, kinds)
    meaning.statuses.add(int(str(own)))
    for text, kept in (
        (call.args[0] if call.args else given.get("detail"), meaning.texts),
        (given.get("remedy"), meaning.remedies),
    ):
        if sentence := _sentence(text):
            kept[sentence] = None


def _sentence(node: ast.AST | None) -> str:
    """Return the words of a text, `…` for what is filled in; blank where there are none."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = [str(one.value) if isinstance(one, ast.Constant) else "…" for one in node.values]
        text = "".join(parts)
        return text if re.search(r"[a-z]{3}", text) else ""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "format_message":
        return re.sub(r"\{[^}]*\}", "…", _sentence(node.args[0]))
    return ""


def _kinds(nodes: Sequence[ast.Call | ast.ClassDef]) -> Iterator[tuple[str, Kind]]:
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        kind = Kind(tuple(one.id for one in node.bases if isinstance(one, ast.Name)))
        for line in node.body:
            if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
                for target in line.targets:
                    if isinstance(target, ast.Name) and hasattr(kind, target.id):
                        setattr(kind, target.id, line.value.value)
        yield node.name, kind


def _is_problem(name: str, kinds: dict[str, Kind]) -> bool:
    if name == ROOT_KIND:
        return True
    return name in kinds and any(_is_problem(base, kinds) for base in kinds[name].bases)


def _inherited(name: str, kinds: dict[str, Kind], what: str) -> str:
    kind = kinds.get(name)
    if kind is None:
        return ""
    return getattr(kind, what) or next(
        (said for base in kind.bases if (said := _inherited(base, kinds, what))), ""
    )


def _status(name: str, kinds: dict[str, Kind]) -> int:
    return int(_inherited(name, kinds, "status") or 400)
