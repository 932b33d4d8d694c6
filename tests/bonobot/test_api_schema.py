"""The OpenAPI document: complete, valid, and consistent with its examples."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from drf_spectacular import validation
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from bonobot.accounts.api.openapi_schema import ANSWERS_PATH, REQUESTS_PATH
from bonobot.core.api.selected_fields import SPARSE_JSON
from tests import rest

SPECIFICATION = Path(validation.__file__).with_name("openapi_3_1_schema.json")
WRITES = ("post", "put", "patch", "delete")

# Schemas of responses whose names end with "Request".
NAMED_REQUEST = frozenset({"ElicitationRequest", "ExampleRequest"})


def list_operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in rest.build_document()["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def list_examples(operation: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the location of a schema in the operation, and an example that must match it."""
    contents = [(("requestBody",), operation.get("requestBody", {}))]
    contents += [
        (("responses", status), response) for status, response in operation["responses"].items()
    ]
    for location, holder in contents:
        for content_type, content in holder.get("content", {}).items():
            for example in content.get("examples", {}).values():
                yield (*location, "content", content_type, "schema"), example["value"]


def test_the_document_is_generated_without_a_warning():
    options = ("--format", "openapi-json", "--fail-on-warn")
    call_command("spectacular", *options, stdout=io.StringIO(), stderr=io.StringIO())


def test_the_document_is_valid_openapi():
    """Validate like `spectacular --validate`, with a faster registry."""
    specification = json.loads(SPECIFICATION.read_text(encoding="utf-8"))
    name = specification["$id"]
    registry = Registry().with_resource(name, Resource.from_contents(specification)).crawl()
    validator = Draft202012Validator({"$ref": name}, registry=registry)
    assert rest.build_document()["openapi"].startswith("3.1")
    assert [error.message[:300] for error in validator.iter_errors(rest.build_document())] == []


def test_every_operation_has_a_description_and_its_roles():
    for path, method, operation in list_operations():
        assert operation["summary"], f"{method} {path}"
        assert not operation["summary"].endswith("."), f"{method} {path}"
        assert "Roles: " in operation["description"], f"{method} {path}"
        assert operation["tags"] != ["api"], f"{method} {path}"


def test_the_description_of_a_field_isnt_the_docstring_of_its_method():
    docstrings = [
        f"{name}.{field}: {schema['description']}"
        for name, shape in rest.build_document()["components"]["schemas"].items()
        for field, schema in shape.get("properties", {}).items()
        if schema.get("description", "").startswith(("Return ", "Tell "))
    ]
    assert not docstrings, "set `help_text`"


def test_operation_ids_are_unique():
    names = [operation["operationId"] for _, _, operation in list_operations()]
    assert sorted(set(names)) == sorted(names)
    assert not [name for name in names if name.startswith("api_")]


def test_every_operation_describes_its_errors():
    for path, method, operation in list_operations():
        described = set(operation["responses"])
        assert {"401", "403", "404", "503"} <= described, f"{method} {path}"
        if method in WRITES:
            assert {"400", "409", "422"} <= described, f"{method} {path}"
        if "{" not in path and method == "get":
            assert "400" in described, f"{method} {path}"


def test_every_body_has_an_example():
    for path, method, operation in list_operations():
        if "requestBody" in operation:
            bodies = [
                location for location, _ in list_examples(operation) if location[0] == "requestBody"
            ]
            assert bodies, f"{method} {path}: add one to bonobot/accounts/api/requests.json"


def test_every_request_example_has_a_schema():
    schemas = rest.build_document()["components"]["schemas"]
    for name in json.loads(REQUESTS_PATH.read_text(encoding="utf-8")):
        assert name in schemas or f"Patched{name}" in schemas


def test_every_list_and_object_response_has_an_example():
    missing = {
        content["schema"]["$ref"].rpartition("/")[2]
        for _, method, operation in list_operations()
        for content in operation["responses"].get("200", {}).get("content", {}).values()
        if method == "get" and "$ref" in content["schema"] and "examples" not in content
    }
    assert not missing, "add them to bonobot/accounts/api/answers.json"


def test_the_response_examples_are_complete_and_current():
    schemas = rest.build_document()["components"]["schemas"]
    for name, example in json.loads(ANSWERS_PATH.read_text(encoding="utf-8")).items():
        assert set(example) == set(schemas[name]["properties"]), (
            f"correct `{name}` in bonobot/accounts/api/answers.json"
        )


def test_every_list_documents_its_ordering_and_every_response_its_fields():
    for path, method, operation in list_operations():
        responses = operation["responses"].get("200", {}).get("content", {})
        ref = responses.get("application/json", {}).get("schema", {}).get("$ref", "")
        if method != "get" or not ref:
            continue
        names = {parameter["name"] for parameter in operation["parameters"]}
        assert ("ordering" in names) == ("/Paginated" in ref), path
        assert "fields" in names, path
        assert SPARSE_JSON in responses, path


def test_request_schemas_are_closed_and_response_schemas_open():
    for name, schema in rest.build_document()["components"]["schemas"].items():
        if schema.get("type") == "object" and "properties" in schema:
            closed = schema.get("additionalProperties") is False
            is_body = name.endswith("Request") and name not in NAMED_REQUEST
            assert closed == is_body, name


def test_every_write_accepts_an_idempotency_key():
    for path, method, operation in list_operations():
        names = {parameter["name"] for parameter in operation["parameters"]}
        assert ("Idempotency-Key" in names) == (method in WRITES), f"{method} {path}"


def test_the_examples_match_their_schemas():
    for path, method, operation in list_operations():
        for location, value in list_examples(operation):
            faults = rest.build_validator("paths", path, method, *location).iter_errors(value)
            errors = [error.message[:300] for error in faults]
            assert not errors, (
                f"correct the example of {method} {path} {location} in answers.json or "
                f"requests.json of bonobot/accounts/api: {errors}"
            )


@pytest.mark.parametrize("name", ["Server", "Agent", "Session", "AuditEntry", "ProblemDetails"])
def test_components_are_named_for_clients(name):
    assert name in rest.build_document()["components"]["schemas"]


def test_no_secret_is_in_a_response_schema():
    token = rest.build_document()["components"]["schemas"]["Token"]["properties"]
    assert "token" not in token
    assert "digest" not in token
