"""Operations become tools with valid schemas, or are refused with a reason and location."""

import json

import pytest
from jsonschema import Draft202012Validator

from mcp_servers.openapi.document import parse_document
from mcp_servers.openapi.document_outline import build_outline, list_base_urls, list_sign_ins
from mcp_servers.openapi.operations import PLAN_META_KEY, iterate_operations
from mcp_servers.scanning import scan_definition
from mcp_servers.schemas import classify_schema
from tests.mcp_servers.openapi.documents import PETS, parameter, text


def build_operations(paths, version="3.1.0", **more):
    return {
        operation.key: operation
        for operation in iterate_operations(parse_document(text(paths, version, **more)))
    }


def build_one_operation(operation, path="/x", version="3.1.0", **more):
    (parsed,) = build_operations({path: {"post": operation}}, version, **more).values()
    return parsed


def convert_schema(schema, version="3.1.0", **more):
    """Return the converted schema of a request body."""
    body = {"content": {"application/json": {"schema": schema}}}
    parsed = build_one_operation({"requestBody": body}, version=version, **more)
    assert not parsed.refusal_reason, parsed.refusal_reason
    Draft202012Validator.check_schema(parsed.tool["inputSchema"])
    return parsed.tool["inputSchema"]["properties"]["body"]


def test_an_operation_becomes_a_tool_with_its_request_plan():
    tool = build_operations(PETS)["GET /pets"].tool
    assert (tool["name"], tool["description"]) == ("listPets", "List pets")
    assert tool["inputSchema"]["properties"] == {"limit": {"type": "integer"}}
    assert tool["annotations"]["readOnlyHint"] is True
    assert tool["_meta"][PLAN_META_KEY]["path"] == "/pets"
    assert tool["outputSchema"]["properties"]["result"]["type"] == ["array", "null"]


def test_methods_decide_the_annotations():
    operations = build_operations(PETS)
    hints = {key: operation.tool["annotations"] for key, operation in operations.items()}
    assert hints["POST /pets"]["readOnlyHint"] is False
    assert hints["DELETE /pets/{id}"]["destructiveHint"] is True
    assert [key for key, operation in operations.items() if operation.is_read_only] == [
        "GET /pets",
        "GET /pets/{id}",
    ]


def test_names_are_unique_ascii_and_independent_of_order():
    paths = {
        "/a": {"get": {"operationId": "do it!"}, "put": {"operationId": "same"}},
        "/b": {"get": {"operationId": "do/it?"}, "put": {"operationId": "Same"}},
        "/c/{id}": {"get": {"parameters": [parameter("id", "path")]}},
        "/d": {"get": {"operationId": "x" * 200}},
    }
    names = {key: operation.name for key, operation in build_operations(paths).items()}
    reversed_names = {
        key: operation.name
        for key, operation in build_operations(dict(reversed(paths.items()))).items()
    }
    assert names == reversed_names
    assert len({name.lower() for name in names.values()}) == 6
    assert names["GET /c/{id}"] == "get_c_id"
    assert all(
        len(name) <= 64 and name.replace("_", "a").replace("-", "a").isalnum()
        for name in names.values()
    )


def test_path_parameters_are_overridden_and_conflicts_renamed():
    paths = {
        "/p/{id}": {
            "parameters": [parameter("id", "path"), parameter("q", "query", {"type": "string"})],
            "post": {
                "parameters": [
                    parameter("q", "query", {"type": "integer"}),
                    parameter("id", "query"),
                    parameter("X Y[z]", "query"),
                ],
                "requestBody": {"content": {"text/plain": {}}},
            },
        }
    }
    tool = build_operations(paths)["POST /p/{id}"].tool
    assert tool["inputSchema"]["properties"]["q"] == {"type": "integer"}
    locations = {
        each["argument"]: (each["in"], each["name"])
        for each in tool["_meta"][PLAN_META_KEY]["parameters"]
    }
    assert locations["id"] == ("path", "id")
    assert locations["query_id"] == ("query", "id")
    assert locations["X_Y_z"] == ("query", "X Y[z]")
    assert tool["_meta"][PLAN_META_KEY]["body"] == {
        "argument": "body",
        "type": "text/plain",
        "as": "text",
    }


def test_protocol_and_authentication_headers_arent_parameters():
    headers = (
        "Authorization",
        "accept",
        "Cookie",
        "Host",
        "Content-Length",
        "Proxy-Connection",
        "X-Own",
    )
    operation = build_one_operation({"parameters": [parameter(name, "header") for name in headers]})
    assert list(operation.tool["inputSchema"]["properties"]) == ["X-Own"]


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/x/{id}", {}),
        ("/x", {"parameters": [parameter("id", "path")]}),
        ("x", {}),
        ("/x?a=b", {}),
        ("/x/../y", {}),
        ("/x/%2e%2e/y", {}),
        ("/x\\y", {}),
        ("/x y", {}),
        ("/x/{a{b}}", {}),
        ("/x", {"parameters": [parameter("a", "formData")]}),
        ("/x", {"parameters": [parameter("a", "query", style="matrix")]}),
        ("/x", {"parameters": [parameter("a\r\nb", "header")]}),
        ("/x", {"parameters": [{"in": "query"}]}),
        ("/x", {"parameters": {}}),
        ("/x", {"parameters": [parameter("a", "query", {"$ref": "https://evil.example/s"})]}),
        ("/x", {"parameters": [parameter("a", "query", {"$dynamicRef": "#a"})]}),
        ("/x", {"parameters": [parameter("a", "query", {"items": 3})]}),
        ("/x", {"parameters": [{"name": "a", "in": "query", "content": {"application/xml": {}}}]}),
        ("/x", {"requestBody": {}}),
        ("/x", {"requestBody": {"required": True, "content": {"application/pdf": {}}}}),
        ("/x", {"servers": [{"url": "https://other.example"}]}),
        ("/x", []),
    ],
)
def test_unsupported_operations_are_refused_with_their_location(path, operation):
    parsed = build_one_operation(operation, path)
    assert parsed.refusal_reason
    assert parsed.tool is None
    assert (parsed.refusal_pointer or parsed.pointer).startswith("/paths/")


def test_a_form_that_requires_a_file_is_refused_and_an_optional_body_omitted():
    form = {"type": "object", "properties": {"f": {"type": "string", "format": "binary"}}}
    content = {"multipart/form-data": {"schema": form | {"required": ["f"]}}}
    assert "file" in build_one_operation({"requestBody": {"content": content}}).refusal_reason
    assert build_one_operation(
        {"requestBody": {"content": {"multipart/form-data": {"schema": form}}}}
    ).tool
    pdf = build_one_operation({"requestBody": {"content": {"application/pdf": {}}}})
    assert "body" not in pdf.tool["_meta"][PLAN_META_KEY]


def test_an_error_refuses_only_its_operation():
    operations = build_operations(
        PETS | {"/bad": {"get": {"parameters": 3}}, "/ref": {"$ref": "#/nowhere"}}
    )
    assert {key for key, operation in operations.items() if operation.refusal_reason} == {
        "GET /bad",
        "ANY /ref",
    }


def test_nullable_and_exclusive_bounds_of_3_0_are_translated():
    schema = {"type": "integer", "nullable": True, "minimum": 1, "exclusiveMinimum": True}
    schema |= {"maximum": 9, "exclusiveMaximum": False, "example": 3, "xml": {}, "x-a": 1}
    assert convert_schema(schema, "3.0.3") == {
        "type": ["integer", "null"],
        "exclusiveMinimum": 1,
        "maximum": 9,
        "examples": [3],
    }
    assert convert_schema({"enum": ["a"], "type": "string", "nullable": True}, "3.0.3")["enum"] == [
        "a",
        None,
    ]
    of_all = {"allOf": [{"type": "object"}], "nullable": True}
    assert convert_schema(of_all, "3.0.3")["anyOf"][1] == {"type": "null"}
    assert "null" not in json.dumps(convert_schema({"type": "string", "nullable": True}, "3.1.0"))


def test_response_only_fields_are_omitted():
    properties = {"id": {"type": "string", "readOnly": True}, "name": {"type": "string"}}
    schema = convert_schema(
        {"type": "object", "properties": properties, "required": ["id", "name"]}
    )
    assert (list(schema["properties"]), schema["required"]) == (["name"], ["name"])


def test_recursive_schemas_are_kept_and_checked_in_a_subprocess():
    node = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Node"}}}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Node"}}}}
    operation = build_one_operation({"requestBody": body}, components={"schemas": {"Node": node}})
    assert classify_schema(operation.tool["inputSchema"]).verdict == "confined"
    validator = Draft202012Validator(operation.tool["inputSchema"])
    assert validator.is_valid({"body": {"next": {"next": {}}}})
    assert not validator.is_valid({"body": {"next": {"next": 3}}})


def test_schemas_with_the_same_name_are_kept_separate():
    parts = {"schemas": {"A": {"type": "string"}}, "x": {"A": {"type": "integer"}}}
    properties = {"a": {"$ref": "#/components/schemas/A"}, "b": {"$ref": "#/components/x/A"}}
    body = {"content": {"application/json": {"schema": {"properties": properties}}}}
    defined = build_one_operation({"requestBody": body}, components=parts).tool["inputSchema"][
        "$defs"
    ]
    assert defined == {"A": {"type": "string"}, "A_2": {"type": "integer"}}


def test_the_output_schema_requires_nothing():
    response_schema = {
        "type": "object",
        "required": ["id"],
        "additionalProperties": False,
        "properties": {"id": {"type": "string", "pattern": "x", "enum": ["a"]}},
    }
    content = {"application/json": {"schema": response_schema}}
    output_schema = build_one_operation(
        {"responses": {"201": {"content": content}, "404": {}}}
    ).tool["outputSchema"]
    assert Draft202012Validator(output_schema).is_valid({"id": None, "more": 1})
    assert output_schema["properties"]["id"] == {"type": ["string", "null"]}


def test_hidden_characters_in_a_description_are_found_by_the_scanner():
    operation = build_one_operation({"description": "Ok\u202e\u200b\U000e0041"})
    assert {finding.tier for finding in scan_definition(operation.tool)} == {"hard"}


def test_base_urls_are_resolved_and_never_invented():
    servers = [
        {"url": "https://{region}.example.com/v1/", "variables": {"region": {"default": "eu"}}},
        {"url": "https://{nothing}.example.com"},
        {"url": "../v2"},
        {"url": "ftp://example.com"},
    ]
    document = parse_document(text({}, servers=servers))
    assert [base["url"] for base in list_base_urls(document)] == ["https://eu.example.com/v1"]
    relative = [
        base["url"]
        for base in list_base_urls(document, "https://docs.example.com/api/openapi.json")
    ]
    assert relative == ["https://eu.example.com/v1", "https://docs.example.com/v2"]
    assert list_base_urls(parse_document(text({}))) == []
    assert [
        base["url"]
        for base in list_base_urls(parse_document(text({})), "https://a.example/x/y.json")
    ] == ["https://a.example"]


def test_only_supported_authentication_schemes_are_offered():
    schemes = {
        "a": {"type": "http", "scheme": "bearer"},
        "b": {"type": "apiKey", "in": "query", "name": "key"},
        "c": {
            "type": "oauth2",
            "flows": {"clientCredentials": {"tokenUrl": "https://t", "scopes": {"r": ""}}},
        },
        "d": {"type": "openIdConnect"},
        "e": {"$ref": "#/nowhere"},
    }
    sign_ins = list_sign_ins(parse_document(text({}, components={"securitySchemes": schemes})))
    assert [sign_in["type"] for sign_in in sign_ins] == ["bearer_token", "api_key", "oauth2"]


def test_the_outline_of_selected_operations_has_their_tools_and_errors():
    outline = build_outline(
        text(PETS | {"/bad": {"get": []}}), operation_keys=["GET /pets", "GET /bad", "GET /none"]
    )
    assert [(tool["key"], bool(tool["fault"])) for tool in outline["tools"]] == [
        ("GET /pets", False),
        ("GET /bad", True),
    ]
