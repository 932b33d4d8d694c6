"""Typed access to the fields of a configuration object, collecting problems."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.json_reader import SourceNode
from bonobot.core.text.untrusted_text import make_visible


@dataclass(frozen=True, kw_only=True)
class ConfigLocation:
    """A location in the configuration file."""

    document: int
    line: int
    path: str

    def mark(self, problem: Problem) -> Problem:
        """Add document, line and path to a problem."""
        if not problem.field.startswith(self.path):
            problem.field = f"{self.path}.{problem.field}" if problem.field else self.path
        problem.extra.setdefault("line", self.line)
        problem.extra.setdefault("document", self.document)
        return problem


class FieldReader:
    """Reads typed fields of an object; invalid ones return None (or empty) and add a problem."""

    def __init__(self, node: SourceNode, path: str, document: int, problems: list[Problem]) -> None:
        """Read the object at `path`, "" for the whole document."""
        self.path, self._document, self._problems = path, document, problems
        self._node = node
        if node.value is not None and not isinstance(node.value, dict):
            self._note("", node.line, "bad_value", "It must be an object.", "Write name: value.")
            self._node = SourceNode({}, node.line)
        self._refuse_repeated()

    def has(self, name: str) -> bool:
        """Return whether the field is present."""
        return self._node.get(name) is not None

    def line_of(self, name: str) -> int:
        """Return the line of a field, or of the object if it is missing."""
        return (self._node.get(name) or self._node).line

    def text(self, name: str) -> str | None:
        """Return a string."""
        node = self._node.get(name)
        if node is None or node.value is None:
            return None
        if isinstance(node.value, str):
            return node.value
        return self._wrong(name, node, "text", 'Write it in "…".')

    def texts_of(self, *names: str) -> dict[str, Any]:
        """Return several strings by name."""
        return {name: self.text(name) for name in names}

    def flag(self, name: str) -> bool | None:
        """Return a boolean."""
        node = self._node.get(name)
        if node is None or isinstance(node.value, bool | None):
            return None if node is None else node.value
        return self._wrong(name, node, "true or false", "Write true or false.")

    def number(self, name: str) -> int | None:
        """Return a non-negative integer."""
        node = self._node.get(name)
        if node is None or node.value is None:
            return None
        value = node.value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53:
            return value
        return self._wrong(name, node, "a whole number", "Write digits, such as 100.")

    def list(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        found = self.items(name) or ()
        texts = [node.value for node in found if isinstance(node.value, str)]
        if len(texts) != len(found):
            self.refuse(name, "bad_value", "Write a list of texts.")
        return tuple(texts)

    def items(self, name: str) -> tuple[SourceNode, ...] | None:
        """Return the items of a list, or None if it is missing."""
        node = self._node.get(name)
        if node is None or isinstance(node.value, list):
            return None if node is None else node.items
        if node.value is not None:
            self._wrong(name, node, "a list", "Write - item, one a line.")
        return ()

    def object(self, name: str) -> SourceNode | None:
        """Return an object, or None if it is missing."""
        node = self._node.get(name)
        if node is None or isinstance(node.value, dict):
            return node
        self._wrong(name, node, "an object", "Write name: value.")
        return None

    def mapping(self, name: str) -> dict[str, str] | None:
        """Return an object of strings, or None if it is missing."""
        inner = self.inner(name)
        if inner is None:
            return None
        return {key: inner.text(key) or "" for key, _line, _node in self.children(name)}

    def plain(self, name: str) -> Any:
        """Return a field of any type as a Python value, or None if it is missing."""
        node = self._node.get(name)
        return None if node is None else node.plain()

    def inner(self, name: str) -> "FieldReader | None":
        """Return a reader of a nested object, or None if it is missing."""
        node = self.object(name)
        return FieldReader(node, self._at(name), self._document, self._problems) if node else None

    def children(self, name: str) -> tuple[tuple[str, int, SourceNode], ...]:
        """Return the (name, line, node) entries of an object."""
        node = self._node.get(name)
        if node is None or node.value is None:
            return ()
        if not isinstance(node.value, dict):
            self._wrong(name, node, "an object", "Write name: value.")
            return ()
        FieldReader(node, self._at(name), self._document, self._problems)
        return node.members

    def refuse(self, name: str, code: str, remedy: str) -> None:
        """Add a problem for an invalid field."""
        node = self._node.get(name) or self._node
        self._note(name, node.line, code, f"`{self._at(name)}` doesn't hold.", remedy)

    def refuse_others(self, known: Collection[str]) -> None:
        """Add a problem for every field that isn't `known`."""
        for name, line, _ in self._node.members:
            if name not in known:
                shown = make_visible(name, 64)
                detail = f"There is no member `{shown}` here."
                self._note(shown, line, "unknown_field", detail, f"Members: {', '.join(known)}.")

    def _refuse_repeated(self) -> None:
        seen: set[str] = set()
        for name, line, _ in self._node.members:
            if name in seen:
                shown = make_visible(name, 64)
                detail = f"`{shown}` is there twice."
                self._note(shown, line, "duplicate_name", detail, "Keep one of them.")
            seen.add(name)

    def _wrong(self, name: str, node: SourceNode, expected: str, remedy: str) -> Any:
        self._note(name, node.line, "bad_value", f"`{self._at(name)}` must be {expected}.", remedy)
        return None

    def _note(self, name: str, line: int, code: str, detail: str, remedy: str) -> None:
        extra = {"document": self._document, "line": line}
        self._problems.append(
            InvalidInput(detail, code=code, field=self._at(name), remedy=remedy, extra=extra)
        )

    def _at(self, name: str) -> str:
        return ".".join(part for part in (self.path, name) if part)
