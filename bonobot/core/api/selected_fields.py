"""Sparse fieldsets: the fields that a request selects with `?fields=`.

A sparse response has its own media type, because it isn't the documented object: typed clients can
rely on every field of a full response.
"""

from collections.abc import Mapping
from typing import Any

from bonobot.core.api.serializers import StrictSerializer
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.process_cache import compute_once

SPARSE_JSON = "application/vnd.bonobot.part+json"

FIELDS_PARAMETER = "fields"


def list_selectable_fields(view: Any, method: str) -> tuple[str, ...]:
    """Return the fields that `?fields=` may select; empty if the view returns no object."""
    if method != "GET":
        return ()
    declared_response = getattr(getattr(view, "get", None), "answer", None)
    serializer = getattr(declared_response, "child", declared_response)
    serializer_class = serializer if isinstance(serializer, type) else type(serializer)
    return (
        _list_readable_fields(serializer_class)
        if issubclass(serializer_class, StrictSerializer)
        else ()
    )


@compute_once
def _list_readable_fields(serializer_class: type[StrictSerializer]) -> tuple[str, ...]:
    return tuple(name for name, field in serializer_class().fields.items() if not field.write_only)


def parse_selected_fields(
    query: Mapping[str, str], names: tuple[str, ...]
) -> frozenset[str] | None:
    """Return the selected fields, None for all; raises `InvalidInput` for unknown ones."""
    if not names or (text := query.get(FIELDS_PARAMETER)) is None:
        return None
    requested = text.split(",")
    if unknown := [name for name in requested if name not in names]:
        raise InvalidInput(
            format_message("Unknown field {name!r}.", name=unknown[0][:80]),
            code="unknown_field",
            field=FIELDS_PARAMETER,
            remedy=format_message(
                "Use field names separated by commas: {names}.", names=", ".join(names)
            ),
        )
    return frozenset(requested)


def limit_serializer_fields(serializer: Any, field_names: frozenset[str] | None) -> Any:
    """Remove unwanted fields from a serializer, so that they aren't computed."""
    fields = getattr(serializer, "child", serializer).fields
    for name in [name for name in fields if field_names is not None and name not in field_names]:
        fields.pop(name)
    return serializer


def select_fields(data: Any, field_names: frozenset[str]) -> Any:
    """Return a response with the wanted fields only, of each row if it is a list."""
    if set(data) >= {"results", "next"}:
        return {**data, "results": [select_fields(row, field_names) for row in data["results"]]}
    return {name: value for name, value in data.items() if name in field_names}
