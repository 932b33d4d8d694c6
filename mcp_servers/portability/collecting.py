"""Collect what is wrong, what should be known and what is still to be filled about one server."""

import json
from collections.abc import Mapping

from bonobot.lib.masking import MASK
from bonobot.lib.problems import Invalid, Problem
from bonobot.lib.sayings import say
from bonobot.lib.secret_names import names_secret
from bonobot.lib.untrusted import visible
from mcp_servers import placeholders
from mcp_servers.notices import Notice
from mcp_servers.portability.entries import Parameter
from mcp_servers.portability.reader import Node

# What VS Code's `inputs` say about an id: a label, and whether it is a password.
Labels = Mapping[str, tuple[str, bool]]


class Collector:
    """Takes note of problems, notices and parameters while a server is read."""

    def __init__(self, line: int, values: Mapping[str, str], labels: Labels, prefix: str) -> None:
        """`prefix` begins the names of parameters that the text itself does not name."""
        self.line, self.problems, self.notices = line, list[Problem](), list[Notice]()
        self.parameters: dict[str, Parameter] = {}
        self._values, self._labels, self._prefix = values, labels, prefix

    def refuse(self, code: str, detail: str, field: str, remedy: str, line: int = 0) -> None:
        """Note a problem; the entry can't be added with it."""
        extra = {"line": line or self.line}
        self.problems.append(Invalid(detail, code=code, field=field, remedy=remedy, extra=extra))

    def add(self, problem: Problem, field: str) -> None:
        """Note a problem that another module found."""
        problem.field = problem.field or field
        problem.extra.setdefault("line", self.line)
        self.problems.append(problem)

    def tell(self, code: str, detail: str, field: str = "") -> None:
        """Note what a person should know."""
        self.notices.append(Notice(code, detail, field))

    def text(self, node: Node, field: str) -> str | None:
        """Return a scalar as text; anything else is a problem."""
        if isinstance(node.value, str):
            return node.value
        if isinstance(node.value, bool | int | float):
            self.tell(
                "converted_value",
                say("`{field}` was no text and was made one.", field=field),
                field,
            )
            return json.dumps(node.value)
        self.refuse(
            "bad_value",
            say("`{field}` must be text.", field=field),
            field,
            'Write it in "…".',
            node.line,
        )
        return None

    def texts(self, node: Node | None, field: str) -> list[tuple[str, str]]:
        """Return an object's members as (name, text)."""
        if node is None or node.value is None:
            return []
        if not isinstance(node.value, dict):
            remedy = 'Write {"NAME": "value"}.'
            self.refuse(
                "bad_value",
                say("`{field}` must be an object.", field=field),
                field,
                remedy,
                node.line,
            )
            return []
        found: dict[str, str] = {}
        for name, _, value in node.members:
            if name in found:
                spot = f"{field}.{visible(name, 64)}"
                self.tell(
                    "repeated_member",
                    say("`{spot}` came twice; the last one counts.", spot=spot),
                    spot,
                )
            if (text := self.text(value, f"{field}.{visible(name, 64)}")) is not None:
                found[name] = text
        return list(found.items())

    def secret(self, text: str, field: str) -> str | None:
        """Return a secret's text with its references filled, or None while it misses something."""
        if text in ("", MASK):
            # Nothing, or what an export shows instead: to be typed in.
            name = f"{self._prefix}_{field.rpartition('.')[2]}".upper().replace("-", "_")
            text = f"${{{name}}}"
        filled, complete = self._fill(text, field, secret=True)
        return filled if complete else None

    def plain(self, text: str, field: str) -> str:
        """Return a readable text with its references filled, as far as there are values."""
        return self._fill(text, field, secret=False)[0]

    def _fill(self, text: str, field: str, *, secret: bool) -> tuple[str, bool]:
        if strange := placeholders.unreadable(text):
            detail = say("`{strange}` can't be filled here.", strange=visible(strange, 60))
            self.refuse("unknown_reference", detail, field, "Write the value, or ${NAME}.")
            return text, False
        filled, missing = placeholders.fill(text, self._values)
        for reference in missing:
            self._ask(reference, field, secret)
        return filled, not missing

    def _ask(self, reference: placeholders.Reference, field: str, secret: bool) -> None:
        name = reference.name
        if reference.forbidden:
            detail = say("`{name}` is Bonobot's own and never handed to a server.", name=name)
            self.refuse("forbidden_variable", detail, field, "Use another name.")
            return
        label, hidden = self._labels.get(name, ("", False))
        known = self.parameters.get(name)
        self.parameters[name] = Parameter(
            name,
            label or name,
            hidden or secret or names_secret(name) or (known is not None and known.secret),
            (*(known.fields if known else ()), field),
        )
        detail = say("`{field}` needs a value for `{name}`.", field=field, name=name)
        self.refuse("missing_value", detail, field, say("Fill in {label}.", label=label or name))
