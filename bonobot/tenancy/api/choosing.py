"""Sparse answers: `?fields=a,b` names the members that are wanted of each object.

Such an answer is marked by its media type, because it isn't the object that the document promises:
whoever asks for whole objects gets whole ones, and typed clients may rely on every member.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from bonobot.tenancy.api.shapes import Shape

PARAMETER = "fields"
PART_JSON = "application/vnd.bonobot.part+json"


def choosable(view: Any, method: str) -> tuple[str, ...]:
    """Return the members of which a reader may choose some; none where no object is answered."""
    if method != "GET":
        return ()
    answer = getattr(getattr(view, "get", None), "answer", None)
    shape = getattr(answer, "child", answer)
    kind = shape if isinstance(shape, type) else type(shape)
    return _members(kind) if issubclass(kind, Shape) else ()


@cache
def _members(shape: type[Shape]) -> tuple[str, ...]:
    return tuple(name for name, field in shape().fields.items() if not field.write_only)


def chosen(query: Mapping[str, str], names: tuple[str, ...]) -> frozenset[str] | None:
    """Return the members that are asked for, None for all; raises `Invalid` for unknown ones."""
    if not names or (text := query.get(PARAMETER)) is None:
        return None
    asked = text.split(",")
    if strange := [name for name in asked if name not in names]:
        raise Invalid(
            say("There is no member {strange!r} to choose.", strange=strange[0][:80]),
            code="unknown_field",
            field=PARAMETER,
            remedy=say("Name members with commas between them: {names}.", names=", ".join(names)),
        )
    return frozenset(asked)


def pattern(names: Iterable[str], *, sign: str = "") -> str:
    """Return the pattern of a parameter that lists some of `names`, each after a `sign`."""
    one = f"{sign}({'|'.join(names)})"
    return f"^{one}(,{one})*$"


def narrow(serializer: Any, wanted: frozenset[str] | None) -> Any:
    """Take from a serializer what isn't wanted, before anything of it is worked out."""
    fields = getattr(serializer, "child", serializer).fields
    for name in [name for name in fields if wanted is not None and name not in wanted]:
        fields.pop(name)
    return serializer


def part_of(data: Any, wanted: frozenset[str]) -> Any:
    """Return an answer with the wanted members only: of its rows, where it is a list."""
    if set(data) >= {"results", "next"}:
        return {**data, "results": [part_of(row, wanted) for row in data["results"]]}
    return {name: value for name, value in data.items() if name in wanted}
