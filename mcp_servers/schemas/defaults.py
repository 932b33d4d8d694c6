"""Fill in the defaults that a schema declares for omitted properties (pure).

Many generators list a property with a default as required, and servers fill it in themselves. So a
default counts as a provided value when arguments are checked and decided; they are sent unchanged.
"""

from collections.abc import Mapping
from typing import Any

from bonobot.core.process_cache import ObjectIdentityCache

MAX_DEPTH = 8
# Prefixes of local references, as generators write them.
_DEFINITION_FIELDS = ("$defs", "definitions")


def fill_defaults(schema: Any, value: Any, *, only_required: bool = False) -> Any:
    """Return `value` with the defaults of omitted properties; `value` itself if there are none.

    With `only_required`, only required properties are filled in: an optional one may be omitted
    even if its default doesn't match the schema.
    """
    if not _schemas_with_defaults.get(schema):
        return value
    return _fill_object(schema, schema, value, only_required=only_required, depth=0)


def _declares_defaults(schema: Any) -> bool:
    """Tell whether a schema may declare a default anywhere."""
    level: list[Any] = [schema]
    while level:
        children: list[Any] = []
        for node in level:
            if isinstance(node, Mapping):
                if "default" in node:
                    return True
                children += node.values()
            elif isinstance(node, list):
                children += node
        level = children
    return False


# Schemas of a snapshot's tools are reused as the same objects.
_schemas_with_defaults = ObjectIdentityCache(_declares_defaults)


def _fill_object(root: Any, schema: Any, value: Any, *, only_required: bool, depth: int) -> Any:
    schema = _resolve_reference(root, schema)
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(value, dict) or not isinstance(properties, Mapping) or depth > MAX_DEPTH:
        return value
    required = schema.get("required")
    required_names = required if isinstance(required, list) else ()
    filled: dict[str, Any] = {}
    for name, declared in properties.items():
        subschema = _resolve_reference(root, declared)
        if not isinstance(subschema, Mapping):
            continue
        if name in value:
            current = value[name]
            new = _fill_object(
                root, subschema, current, only_required=only_required, depth=depth + 1
            )
            if new is not current:
                filled[name] = new
        elif (default := _find_default(declared, subschema)) is not None and (
            name in required_names or not only_required
        ):
            filled[name] = default[0]
    return {**value, **filled} if filled else value


def _find_default(declared: Any, resolved: Mapping[str, Any]) -> tuple[Any] | None:
    """Return the default of a property in a tuple; one next to a reference takes precedence."""
    for schema in (declared, resolved):
        if "default" in schema:
            return (schema["default"],)
    return None


def _resolve_reference(root: Any, schema: Any) -> Any:
    """Follow a local reference to a definition, once."""
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    if not isinstance(reference, str):
        return schema
    start, _, name = reference.removeprefix("#/").partition("/")
    if not reference.startswith("#/") or start not in _DEFINITION_FIELDS:
        return schema
    definitions = root.get(start)
    return definitions.get(name, schema) if isinstance(definitions, Mapping) else schema
