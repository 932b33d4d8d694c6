"""Typed access to the fields of a configuration object, collecting problems."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from typing import Any

from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.renamed_fields import replace_renamed_fields
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
            self._add_problem(
                "", node.line, "bad_value", "Must be an object.", "Use the form `name: value`."
            )
            self._node = SourceNode({}, node.line)
        self._reject_duplicate_fields()

    def accept_old_names(self, known_names: Collection[str]) -> None:
        """Read fields under their old names, too, if the new ones are in `known_names`."""
        names = {name: name for name, _line, _node in self._node.fields}
        new_names = {old: new for new, old in replace_renamed_fields(names, known_names).items()}
        self._node = replace(
            self._node,
            fields=tuple((new_names[name], line, node) for name, line, node in self._node.fields),
        )

    def has_field(self, name: str) -> bool:
        return self._node.get(name) is not None

    def get_line(self, name: str) -> int:
        """Return the line of a field, or of the object if it is missing."""
        return (self._node.get(name) or self._node).line

    def read_text(self, name: str) -> str | None:
        node = self._node.get(name)
        if node is None or node.value is None:
            return None
        if isinstance(node.value, str):
            return node.value
        return self._reject_type(name, node, "a string", "Put the value in quotation marks.")

    def read_spec(
        self, spec_class: type[Any], *, without: Collection[str] = (), others: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the strings, booleans, and integers of a dataclass that the object sets.

        It can't set those named `without`; the caller reads the `others`. Rejects further fields.
        """
        kinds = list_plain_fields(spec_class)
        names = [name for name in kinds if name not in without]
        self.accept_old_names((*names, *others))
        self.reject_unknown_fields((*names, *others))
        values = {name: _READ_FUNCTIONS[kinds[name]](self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def read_boolean(self, name: str) -> bool | None:
        node = self._node.get(name)
        if node is None or isinstance(node.value, bool | None):
            return None if node is None else node.value
        return self._reject_type(name, node, "true or false", "Use true or false.")

    def read_integer(self, name: str) -> int | None:
        """Return a non-negative integer."""
        node = self._node.get(name)
        if node is None or node.value is None:
            return None
        value = node.value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53:
            return value
        return self._reject_type(name, node, "an integer", "Enter digits, such as 100.")

    def read_text_list(self, name: str) -> tuple[str, ...]:
        nodes = self.read_items(name) or ()
        texts = [node.value for node in nodes if isinstance(node.value, str)]
        if len(texts) != len(nodes):
            self.reject_field(name, "bad_value", "Provide a list of strings.")
        return tuple(texts)

    def read_items(self, name: str) -> tuple[SourceNode, ...] | None:
        """Return the items of a list, or None if it is missing."""
        node = self._node.get(name)
        if node is None or isinstance(node.value, list):
            return None if node is None else node.items
        if node.value is not None:
            self._reject_type(name, node, "a list", "Use - item, one per line.")
        return ()

    def read_object(self, name: str) -> SourceNode | None:
        """Return an object, or None if it is missing."""
        node = self._node.get(name)
        if node is None or isinstance(node.value, dict):
            return node
        self._reject_type(name, node, "an object", "Use the form `name: value`.")
        return None

    def read_text_mapping(self, name: str) -> dict[str, str] | None:
        """Return an object of strings, or None if it is missing."""
        reader = self.read_nested_fields(name)
        if reader is None:
            return None
        return {key: reader.read_text(key) or "" for key, _line, _node in self.list_entries(name)}

    def read_value(self, name: str) -> Any:
        """Return a field of any type as a Python value, or None if it is missing."""
        node = self._node.get(name)
        return None if node is None else node.to_python()

    def read_nested_fields(self, name: str) -> "FieldReader | None":
        """Return a reader of a nested object, or None if it is missing."""
        node = self.read_object(name)
        return (
            FieldReader(node, self._build_path(name), self._document, self._problems)
            if node
            else None
        )

    def list_entries(self, name: str) -> tuple[tuple[str, int, SourceNode], ...]:
        """Return the (name, line, node) entries of an object."""
        node = self._node.get(name)
        if node is None or node.value is None:
            return ()
        if not isinstance(node.value, dict):
            self._reject_type(name, node, "an object", "Use the form `name: value`.")
            return ()
        FieldReader(node, self._build_path(name), self._document, self._problems)
        return node.fields

    def reject_field(self, name: str, code: str, remedy: str) -> None:
        """Add a problem for an invalid field."""
        node = self._node.get(name) or self._node
        self._add_problem(name, node.line, code, f"`{self._build_path(name)}` isn't valid.", remedy)

    def reject_unknown_fields(self, known_names: Collection[str]) -> None:
        """Add a problem for every field that isn't in `known_names`."""
        for name, line, _ in self._node.fields:
            if name not in known_names:
                visible_name = make_visible(name, 64)
                detail = f"Unknown field `{visible_name}`."
                self._add_problem(
                    visible_name,
                    line,
                    "unknown_field",
                    detail,
                    f"Supported fields: {', '.join(known_names)}.",
                )

    def _reject_duplicate_fields(self) -> None:
        seen_names: set[str] = set()
        for name, line, _ in self._node.fields:
            if name in seen_names:
                visible_name = make_visible(name, 64)
                detail = f"`{visible_name}` is defined twice."
                self._add_problem(
                    visible_name, line, "duplicate_name", detail, "Remove the duplicate."
                )
            seen_names.add(name)

    def _reject_type(self, name: str, node: SourceNode, expected: str, remedy: str) -> Any:
        self._add_problem(
            name, node.line, "bad_value", f"`{self._build_path(name)}` must be {expected}.", remedy
        )
        return None

    def _add_problem(self, name: str, line: int, code: str, detail: str, remedy: str) -> None:
        extra = {"document": self._document, "line": line}
        self._problems.append(
            InvalidInput(
                detail, code=code, field=self._build_path(name), remedy=remedy, extra=extra
            )
        )

    def _build_path(self, name: str) -> str:
        return ".".join(part for part in (self.path, name) if part)


_READ_FUNCTIONS: dict[type, Callable[[FieldReader, str], Any]] = {
    str: FieldReader.read_text,
    bool: FieldReader.read_boolean,
    int: FieldReader.read_integer,
}


def list_plain_fields(spec_class: type[Any]) -> dict[str, type]:
    """Return the types of a dataclass's strings, booleans, and integers by name, in its order."""
    return {
        spec_field.name: kind
        for spec_field in fields(spec_class)
        for kind in _READ_FUNCTIONS
        if spec_field.type in (kind, kind | None)
    }


def export_spec(
    spec_class: type[Any], row: Any, *, without: Collection[str] = ()
) -> dict[str, Any]:
    """Return the plain fields of a dataclass whose values in `row` aren't the defaults."""
    names = list_plain_fields(spec_class).keys() - without
    return {
        spec_field.name: value
        for spec_field in fields(spec_class)
        if spec_field.name in names
        and (value := getattr(row, spec_field.name)) != spec_field.default
    }
