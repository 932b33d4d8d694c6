"""Schemas are classified once: inline, confined or refused, with a reason."""

import json
import re
import socket
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.schemas import classify_schema


def with_property(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, **more}


def build_nested_schema(depth: int, keyword: str = "not") -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {keyword: schema if keyword == "not" else [schema]}
    return schema


def doubling(levels: int) -> dict[str, Any]:
    """Return a schema of a few nodes that stands for 2^levels."""
    parts: dict[str, Any] = {"n0": {"type": "string"}}
    for level in range(1, levels + 1):
        reference = {"$ref": f"#/$defs/n{level - 1}"}
        parts[f"n{level}"] = {"anyOf": [reference, dict(reference)]}
    return with_property({"$ref": f"#/$defs/n{levels}"}, **{"$defs": parts})


PLAIN = {
    "usual": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "pattern": "^[A-Z]", "description": "Where"},
            "days": {"type": "integer", "minimum": 1},
            "unit": {"enum": ["C", "F"], "default": "C"},
            "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    "empty": {},
    "local reference": with_property({"$ref": "#/$defs/x"}, **{"$defs": {"x": {"type": "null"}}}),
    "anchor": with_property({"$ref": "#here"}, **{"$defs": {"x": {"$anchor": "here"}}}),
    "escaped pointer": with_property(
        {"$ref": "#/$defs/a~1b%25"}, **{"$defs": {"a/b%": {"type": "string"}}}
    ),
    "identifiers of its own": {
        "$id": "https://example.com/root.json",
        "type": "object",
        "properties": {"a": {"$ref": "nested.json#/$defs/x"}},
        "$defs": {"n": {"$id": "nested.json", "$defs": {"x": {"type": "string"}}}},
    },
    "urn": {
        "$id": "urn:uuid:deadbeef-1234-00ff-ff00-4321feebdaed",
        "type": "object",
        "properties": {"a": {"$ref": "urn:uuid:deadbeef-1234-00ff-ff00-4321feebdaed#/$defs/x"}},
        "$defs": {"x": {"type": "string"}},
    },
    "property called $ref": {"type": "object", "properties": {"$ref": {"type": "string"}}},
    "property called pattern": {"type": "object", "properties": {"pattern": {"type": "string"}}},
    "draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "definitions": {"x": {"type": "string"}},
        "properties": {"a": {"$ref": "#/definitions/x"}},
    },
    "draft 4": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "properties": {"a": {"type": "number", "minimum": 0, "exclusiveMinimum": True}},
    },
    "an unknown dialect": {"$schema": "https://example.com/dialect", "type": "object"},
    "vendor keywords": with_property({"type": "string", "x-mcp-header": "Region", "format": "uri"}),
    "a pattern that backtracks": with_property({"pattern": "^(a+)+$"}),
    "a named group of JavaScript": with_property({"pattern": r"^(?<year>\d{4})\/\d\d$"}),
    "data that looks like a schema": with_property(
        {"default": {"$ref": "http://x", "pattern": "["}}
    ),
    "a long list of choices": with_property({"enum": [f"zone-{n}" for n in range(600)]}),
}
CONFINED = {
    "recursive": (with_property({"$ref": "#"}), "recursive"),
    "recursive by its definitions": (
        with_property(
            {"$ref": "#/$defs/a"},
            **{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"items": {"$ref": "#/$defs/a"}}}},
        ),
        "recursive",
    ),
    "a meta-schema": (
        with_property({"$ref": "https://json-schema.org/draft/2020-12/schema"}),
        "recursive|dynamicRef",
    ),
    "dynamic": (
        with_property({"$dynamicRef": "#m", "$dynamicAnchor": "m"}),
        "dynamicRef|recursive",
    ),
    "look-ahead": (with_property({"pattern": "^(?=a)(a+)+$"}), "linear time"),
    "back reference in a name": (
        {"type": "object", "patternProperties": {r"(a+)+\1$": {}}},
        "linear time",
    ),
    "another dialect inside": (
        with_property({"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}),
        "dialect of its own",
    ),
    "unevaluated": ({"type": "object", "unevaluatedProperties": False}, "unevaluated"),
    "many nodes": (
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(300)}},
        "200 nodes",
    ),
    "doubling": (doubling(12), "multiply"),
    "doubling for long": (doubling(24), "deeply"),
    "a long chain": (with_property(build_nested_schema(40)), "deeply"),
    "a huge list of choices": (
        with_property({"enum": [str(n) for n in range(20_000)]}),
        "multiply",
    ),
}
REFUSED = {
    "nothing": (None, "isn't a JSON object"),
    "a list": ([], "isn't a JSON object"),
    "true": (True, "isn't a JSON object"),
    "too many nodes": (
        {"type": "object", "properties": {f"p{n}": True for n in range(2_001)}},
        "2000 nodes",
    ),
    "too many values": (with_property({"enum": list(range(60_000))}), "2000 nodes"),
    "too deep": (build_nested_schema(65), "more than 64 levels deep"),
    "too deep to count": (build_nested_schema(5_000), "more than 64 levels deep"),
    "external": (with_property({"$ref": "https://example.com/x.json"}), "outside"),
    "external file": (with_property({"$ref": "file:///etc/passwd"}), "outside"),
    "external by identifier": (
        {"$id": "http://127.0.0.1:9/a", "type": "object", "$ref": "b.json"},
        "outside",
    ),
    "hidden in an unknown keyword": (
        with_property(
            {"$ref": "#/x-parts/y"}, **{"x-parts": {"y": {"$ref": "http://127.0.0.1:9"}}}
        ),
        "outside",
    ),
    "nowhere": (with_property({"$ref": "#/$defs/missing"}), "nowhere"),
    "no such anchor": (with_property({"$ref": "#missing"}), "nowhere"),
    "a list's name": (with_property({"$ref": "#/allOf/x"}, allOf=[{}]), "nowhere"),
    "no type": ({"type": "any"}, r"\$\.type"),
    "old required": (with_property({"required": True}), r"\$\.properties\.a\.required"),
    "no pattern": (with_property({"pattern": "[a"}), "regular expression"),
    "no Unicode": (with_property({"const": "\ud83d"}), "Unicode"),
    "no number": (with_property({"const": float("nan")}), "Unicode"),
}


@pytest.mark.parametrize("schema", PLAIN.values(), ids=PLAIN.keys())
def test_ordinary_schemas_are_checked_inline(schema: Any) -> None:
    classification = classify_schema(schema)
    assert (classification.verdict, classification.reason) == ("inline", "")


@pytest.mark.parametrize(("schema", "reason"), CONFINED.values(), ids=CONFINED.keys())
def test_costly_schemas_are_checked_in_a_subprocess_with_the_reason(
    schema: Any, reason: str
) -> None:
    judgement = classify_schema(schema)
    assert judgement.verdict == "confined"
    assert re.search(reason, judgement.reason)


@pytest.mark.parametrize(("schema", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_invalid_schemas_are_refused_with_the_reason(schema: Any, reason: str) -> None:
    judgement = classify_schema(schema)
    assert judgement.verdict == "refused"
    assert re.search(reason, judgement.reason)


def test_remote_references_arent_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket, "socket", forbidden)
    monkeypatch.setattr(socket, "create_connection", forbidden)
    classify_schema(with_property({"$ref": "http://127.0.0.1:9/x"}))
    classify_schema(
        {"$schema": "http://127.0.0.1:9/dialect", "$id": "http://127.0.0.1:9/", "type": "object"}
    )


@pytest.mark.parametrize(
    "pattern",
    ["((a{1,500}){1,500}){1,500}", "(" * 2_000 + "a" + ")" * 2_000, "(x+x+){1000}y", "\\pL{1000}"],
    ids=["repeated", "nested", "wide", "letters"],
)
def test_a_catastrophic_pattern_isnt_executed(pattern: str) -> None:
    started_at = time.process_time()
    classify_schema(with_property({"pattern": pattern}))
    assert time.process_time() - started_at < 1


KEYWORDS = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "anyOf",
        "not",
        "$ref",
        "$id",
        "$defs",
        "pattern",
        "enum",
        "$schema",
        "$anchor",
        "required",
        "additionalProperties",
        "patternProperties",
        "$dynamicRef",
        "default",
    ]
)
WORDS = st.sampled_from(
    ["object", "string", "#", "#/$defs/x", "#x", "http://x/", "a(", "^a+$", "x"]
)


@given(
    st.dictionaries(
        KEYWORDS,
        st.recursive(
            WORDS | st.booleans() | st.integers() | st.none(),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=3)
            ),
            max_leaves=12,
        ),
        max_size=6,
    )
)
def test_any_schema_gets_a_verdict_and_never_an_exception(schema: dict[str, Any]) -> None:
    judgement = classify_schema(json.loads(json.dumps(schema)))
    assert judgement.verdict in ("inline", "confined", "refused")
    assert bool(judgement.reason) == (judgement.verdict != "inline")
