"""Parsing of documents: versions, references, and hostile documents."""

import json
import time

import pytest

from bonobot.core.problems import InvalidInput
from mcp_servers.openapi.document import MAX_DOCUMENT_BYTES, UnusableDocumentPart, parse_document
from mcp_servers.openapi.operations import iterate_operations
from mcp_servers.schemas.subprocess_pool import build_outline_in_child
from tests.mcp_servers.openapi.documents import PETS, document, text


def refusal(document_text):
    with pytest.raises(InvalidInput) as problem:
        parse_document(document_text)
    return problem.value.code


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0", "3.1", "3.2.0", "3.0.0-rc1"])
def test_openapi_3_versions_are_supported(version):
    assert parse_document(text(PETS, version)).minor == int(version[2])


@pytest.mark.parametrize("version", ["4.0.0", "3.3.0", "2.0", 3.1, "3.1.0\n", ["3.0"]])
def test_other_versions_are_refused(version):
    assert refusal(json.dumps(document({}) | {"openapi": version})) == "unsupported_version"


def test_swagger_is_refused_with_a_remedy():
    with pytest.raises(InvalidInput) as problem:
        parse_document('{"swagger": "2.0", "paths": {}}')
    assert problem.value.code == "unsupported_version"
    assert "swagger2openapi" in problem.value.remedy


@pytest.mark.parametrize(
    "document_text",
    [
        *("", "  \n", "[]", "{", "null", '{"openapi": "3.1.0", "paths": []}', "<html></html>"),
        *('{"info": {}}', '{"openapi": "3.1.0", "x": NaN}', "a: 1\n---\nb: 2\n"),
        '{"openapi": "3.1.0", "x": ' + "[" * 70 + "]" * 70 + "}",
        '{"openapi": "3.1.0", "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
def test_an_invalid_document_is_refused(document_text):
    assert refusal(document_text) == "broken_document"


def test_yaml_statuses_and_dates_are_strings():
    document_text = (
        "openapi: 3.0.3\ninfo: {title: Pets, version: 2020-01-01}\npaths:\n  /pets:\n    get:\n"
        "      responses:\n        200: {description: no}\n"
    )
    parsed = parse_document(document_text)
    assert parsed.root["info"]["version"] == "2020-01-01"
    assert [operation.key for operation in iterate_operations(parsed)] == ["GET /pets"]


def test_an_alias_bomb_is_refused_before_it_grows():
    lines = ["openapi: 3.0.3", 'a0: &a0 "lol"']
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    started_at = time.perf_counter()
    assert refusal("\n".join(lines)) == "too_large"
    assert time.perf_counter() - started_at < 1


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["a: &a [*a]"], "unsupported_yaml"),
        (["a: *later", "b: &later 1"], "unsupported_yaml"),
        (["a: &a x", "*a : 1"], "unsupported_yaml"),
        (["a: &a x", "b: {<<: *a}"], "unsupported_yaml"),
        ([f"a: &a {'x' * 1_000_000}", f"b: [{', '.join(['*a'] * 20)}]"], "too_large"),
        ([f"a: &a {'[' * 40}{']' * 40}", f"b: {'[' * 30}*a{']' * 30}"], "too_large"),
    ],
)
def test_unknown_or_too_deep_aliases_are_refused(lines: list[str], code: str):
    assert refusal("\n".join(["openapi: 3.0.3", *lines])) == code


def test_aliases_and_merge_keys_are_resolved():
    root = parse_document(
        "openapi: 3.0.3\ninfo: {title: Pets, version: '1'}\n"
        "x-a: &a {type: string, maxLength: 9, enum: &e [x, y]}\n"
        "x-b: &b {type: integer, minimum: 1}\n"
        "paths: {}\n"
        "x-own: {<<: *a, maxLength: 5}\nx-both: {<<: [*a, *b]}\nx-list: [*e, *e]\n"
    ).root
    assert root["x-own"] == {"type": "string", "maxLength": 5, "enum": ["x", "y"]}
    assert root["x-both"] == {"type": "string", "maxLength": 9, "enum": ["x", "y"], "minimum": 1}
    assert root["x-list"] == [["x", "y"], ["x", "y"]]


def test_a_document_that_is_too_long_is_refused_unread():
    began = time.perf_counter()
    assert refusal("{" + " " * 50 * 1024 * 1024) == "too_large"
    assert refusal(" " * (MAX_DOCUMENT_BYTES + 1)) == "too_large"
    assert time.perf_counter() - began < 2


def test_local_references_with_escapes_are_resolved():
    parsed = parse_document(text({"/a~b/{x}": {"get": {"summary": "here"}}}))
    assert parsed.resolve_node({"$ref": "#/paths/~1a~0b~1%7Bx%7D/get"}, "")[0] == {
        "summary": "here"
    }


@pytest.mark.parametrize(
    "reference",
    [
        *("https://evil.example/x.json#/a", "other.yaml", "file:///etc/passwd", "#/none"),
        *("#/info/title/x", "#/components/parameters/a", "#/list/9", "#anchor/x"),
    ],
)
def test_external_unknown_and_circular_references_are_refused(reference):
    circle = {"parameters": {"a": {"$ref": "#/components/parameters/b"}}}
    circle["parameters"]["b"] = {"$ref": "#/components/parameters/a"}
    parsed = parse_document(text({}, components=circle, list=[1]))
    with pytest.raises(UnusableDocumentPart):
        parsed.resolve_node({"$ref": reference}, "/here")


def test_a_long_chain_of_references_is_refused():
    chain = {f"p{n}": {"$ref": f"#/components/parameters/p{n + 1}"} for n in range(40)}
    parsed = parse_document(text({}, components={"parameters": chain | {"p40": {}}}))
    with pytest.raises(UnusableDocumentPart):
        parsed.resolve_node({"$ref": "#/components/parameters/p0"}, "")
    parsed.resolve_node({"$ref": "#/components/parameters/p30"}, "")


def test_the_subprocess_parses_and_reports_errors():
    outline = build_outline_in_child(text(PETS))
    assert [operation["name"] for operation in outline["operations"]] == [
        "listPets",
        "addPet",
        "getPet",
        "removePet",
    ]
    with pytest.raises(InvalidInput) as problem:
        build_outline_in_child("openapi: '2'")
    assert problem.value.code == "unsupported_version"


def test_schemas_that_expand_exponentially_refuse_only_their_operation():
    schemas = {
        f"S{n}": {
            "type": "object",
            "properties": {f"p{i}": {"$ref": f"#/components/schemas/S{n + 1}"} for i in range(20)},
        }
        for n in range(200)
    }
    bomb = {
        "get": {
            "parameters": [
                {"name": "a", "in": "query", "schema": {"$ref": "#/components/schemas/S0"}}
            ]
        }
    }
    schemas["S200"] = {}
    outline = build_outline_in_child(text(PETS | {"/bomb": bomb}, components={"schemas": schemas}))
    refused = {
        operation["key"]: operation["refused"]
        for operation in outline["operations"]
        if operation["refused"]
    }
    assert list(refused) == ["GET /bomb"]
