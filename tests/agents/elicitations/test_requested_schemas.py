"""Forms of elicitation requests: which are accepted, and how answers are validated."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.elicitations.requested_schemas import clean_content, iterate_fields, parse_elicitation
from bonobot.core.problems import InvalidInput

TITLED = {"oneOf": [{"const": "a", "title": "Ay"}, {"const": "b"}]}
SEVERAL = {"type": "array", "items": {"enum": ["x", "y", "z"]}, "minItems": 1, "maxItems": 2}
ALL: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "minLength": 2, "maxLength": 5},
    "mail": {"type": "string", "format": "email"},
    "day": {"type": "string", "format": "date"},
    "page": {"type": "string", "format": "uri"},
    "number": {"type": "number", "minimum": 0.5, "maximum": 9},
    "count": {"type": "integer"},
    "sure": {"type": "boolean"},
    "old": {"type": "string", "enum": ["1", "2"], "enumNames": ["One", "Two"]},
    "titled": {"type": "string", **TITLED},
    "several": SEVERAL,
}


def build_form(**properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"message": "Please", "requestedSchema": schema}


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("name", "Ada", "A"),
        ("name", "Ada", "Ada Lovelace"),
        ("name", "Ada", 7),
        ("mail", "a@b.c", "nobody"),
        ("day", "2026-07-28", "tomorrow"),
        ("page", "https://example.com", "not a page"),
        ("number", 3.5, 0.1),
        ("number", 3, 10),
        ("count", 3, 3.5),
        ("count", 3, True),
        ("sure", False, "yes"),
        ("old", "2", "Two"),
        ("titled", "b", "Ay"),
        ("several", ["x", "y"], ["x", "y", "z"]),
        ("several", ["x"], ["w"]),
        ("several", ["x"], "x"),
    ],
)
def test_values_are_validated_by_their_fields(name: str, good: Any, bad: Any) -> None:
    fields = parse_elicitation(build_form(**{name: ALL[name]})).fields
    assert clean_content(fields, {name: good}) == {name: good}
    with pytest.raises(InvalidInput) as caught:
        clean_content(fields, {name: bad})
    assert (caught.value.code, caught.value.field) == ("bad_answer", f"content.{name}")


def test_missing_required_and_unknown_fields_are_refused() -> None:
    request = build_form(**ALL)
    request["requestedSchema"]["required"] = ["count"]
    fields = parse_elicitation(request).fields
    assert [field.name for field in fields if field.required] == ["count"]
    for content in ({}, {"count": None}, {"count": 1, "more": 1}):
        with pytest.raises(InvalidInput):
            clean_content(fields, content)
    assert clean_content(fields, {"count": 1, "name": ""}) == {"count": 1}


def test_a_valid_default_counts_as_entered_when_its_field_is_omitted() -> None:
    request = build_form(
        color={"type": "string", "enum": ["red", "blue"], "default": "red"},
        size={"type": "integer", "default": "large"},
        sure={"type": "boolean", "default": False},
    )
    request["requestedSchema"]["required"] = ["color"]
    fields = parse_elicitation(request).fields
    assert clean_content(fields, {}) == {"color": "red", "sure": False}
    assert clean_content(fields, {"color": "blue", "sure": True}) == {"color": "blue", "sure": True}
    with pytest.raises(InvalidInput):
        clean_content(fields, {"color": ""})


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"message": "  "},
        {"message": "x" * 5_000, "requestedSchema": {"type": "object", "properties": {}}},
        {"message": "?", "mode": "video"},
        {"message": "?", "requestedSchema": {"type": "array"}},
        build_form(nested={"type": "object", "properties": {}}),
        build_form(list={"type": "array", "items": {"type": "object"}}),
        build_form(**{f"f{number}": {"type": "string"} for number in range(51)}),
        build_form(many={"type": "string", "enum": [str(option) for option in range(201)]}),
        {"message": "?", "mode": "url"},
        {"message": "?", "mode": "url", "url": "javascript:alert(1)"},
        {"message": "?", "mode": "url", "url": "file:///etc/passwd"},
        {"message": "?", "mode": "url", "url": "https:///nowhere"},
        {"message": "?", "mode": "url", "url": "https://x.example/ y"},
        {"message": "?", "mode": "url", "url": "https://[x"},
    ],
)
def test_fields_that_cant_be_shown_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_elicitation(params)
    assert caught.value.code == "bad_elicitation"


@pytest.mark.parametrize(
    ("params", "flags"),
    [
        (build_form(name={"type": "string"}), ()),
        (build_form(api_key={"type": "string"}), ("secret:api_key",)),
        (build_form(x={"type": "string", "title": "Your password"}), ("secret:x",)),
        (build_form(secret={"type": "boolean"}), ()),
        (
            {**build_form(x={"type": "string"}), "message": "Type your password"},
            ("secret:message",),
        ),
        ({"message": "?", "mode": "url", "url": "https://a.example/"}, ()),
        (
            {"message": "?", "mode": "url", "url": "http://bank.example@bücher.example/"},
            ("not_encrypted", "unusual_host", "sign_in_in_address"),
        ),
    ],
)
def test_suspicious_requests_get_a_warning(params: dict[str, Any], flags: tuple[str, ...]) -> None:
    assert parse_elicitation(params).flags == flags


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(JSON, JSON)
def test_any_request_is_a_form_or_refused(schema: Any, content: Any) -> None:
    # With any other exception a server could break the session.
    with suppress(InvalidInput):
        fields = tuple(iterate_fields(schema))
        clean_content(fields, content if isinstance(content, dict) else {})
