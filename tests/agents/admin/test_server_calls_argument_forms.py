"""The form built from a tool's input schema: its fields, and the arguments it sends."""

import json

import pytest

from agents.admin.server_calls import ToolArgumentForm, list_arguments
from bonobot.core.problems import InvalidInput

SCHEMA = {
    "type": "object",
    "required": ["city", "unit"],
    "$defs": {"Unit": {"enum": ["c", "f"]}},
    "properties": {
        "city": {"type": "string", "description": "Where"},
        "unit": {"$ref": "#/$defs/Unit"},
        "days": {"type": "integer", "default": 3},
        "factor": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "deep": {"type": ["boolean", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "parts": {"type": "array", "items": {"enum": [1, 2]}},
        "where": {"type": "object", "properties": {"lat": {"type": "number"}}},
    },
}


def build_form(**arguments: object) -> ToolArgumentForm:
    names = list(SCHEMA["properties"])
    return ToolArgumentForm(
        SCHEMA, {f"arg-{names.index(name)}": value for name, value in arguments.items()}
    )


def test_each_type_has_its_own_field() -> None:
    assert [field.kind for field in list_arguments(SCHEMA)] == [
        *("text", "choice", "integer", "number", "boolean", "lines", "choices", "json")
    ]


def test_values_are_sent_as_the_schema_types_them() -> None:
    form = build_form(
        city="Berlin",
        unit='"c"',
        days="2",
        factor="0.5",
        deep="false",
        tags="a\n\nb",
        parts=["1", "2"],
        where='{"lat": 1}',
    )
    assert form.parse_arguments() == {
        "city": "Berlin",
        "unit": "c",
        "days": 2,
        "factor": 0.5,
        "deep": False,
        "tags": ["a", "b"],
        "parts": [1, 2],
        "where": {"lat": 1},
    }


def test_empty_values_arent_sent_except_required_strings() -> None:
    assert build_form().parse_arguments() == {"city": ""}


@pytest.mark.parametrize(
    ("name", "value"), [("days", "two"), ("unit", '"k"'), ("where", "{"), ("factor", "x")]
)
def test_invalid_values_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=name) as raised:
        build_form(**{name: value}).parse_arguments()
    assert raised.value.code == "invalid_arguments"


def test_the_form_starts_with_defaults() -> None:
    html = str(ToolArgumentForm(SCHEMA))
    assert 'value="3"' in html


def test_required_nested_values_start_with_their_structure() -> None:
    point = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    properties = {"path": {"type": "array", "items": point}, "where": point}
    form = ToolArgumentForm({"properties": properties, "required": ["path"]})
    path, place = (form[f"arg-{index}"].value() for index in (0, 1))
    assert json.loads(path) == [{"x": 0}]
    assert place == ""
    submitted = ToolArgumentForm({"properties": properties}, {"arg-0": "", "arg-1": ""})
    assert (submitted["arg-0"].value(), submitted.parse_arguments()) == ("", {})


@pytest.mark.parametrize("schema", [None, [], {}, {"properties": 3}, {"properties": {"a": 7}}])
def test_a_schema_without_properties_is_handled(schema: object) -> None:
    assert isinstance(str(ToolArgumentForm(schema)), str)


def test_property_names_cant_collide_with_form_fields() -> None:
    html = str(ToolArgumentForm({"properties": {'"><script>x': {"type": "string"}}}))
    assert "<script>" not in html
