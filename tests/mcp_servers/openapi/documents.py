"""Builders of OpenAPI documents for tests."""

import json
from typing import Any


def document(paths: dict[str, Any], version: str = "3.1.0", **more: Any) -> dict[str, Any]:
    """Return a document with these paths."""
    return {"openapi": version, "info": {"title": "Pets", "version": "1"}, "paths": paths, **more}


def text(paths: dict[str, Any], version: str = "3.1.0", **more: Any) -> str:
    """Return a document as JSON."""
    return json.dumps(document(paths, version, **more))


def parameter(name: str, location: str, schema: Any = None, **more: Any) -> dict[str, Any]:
    """Return a parameter."""
    declaration = {"name": name, "in": location, "schema": schema or {"type": "string"}, **more}
    return declaration | ({"required": True} if location == "path" else {})


PETS = {
    "/pets": {
        "get": {
            "operationId": "listPets",
            "summary": "List pets",
            "tags": ["pets"],
            "parameters": [parameter("limit", "query", {"type": "integer"})],
            "responses": {
                "200": {
                    "description": "Pets",
                    "content": {
                        "application/json": {
                            "schema": {"type": "array", "items": {"type": "string"}}
                        }
                    },
                }
            },
        },
        "post": {
            "operationId": "addPet",
            "tags": ["pets"],
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {"type": "object", "properties": {"name": {"type": "string"}}}
                    }
                },
            },
        },
    },
    "/pets/{id}": {
        "parameters": [parameter("id", "path")],
        "get": {"operationId": "getPet", "tags": ["pets"]},
        "delete": {"operationId": "removePet", "tags": ["admin"], "deprecated": True},
    },
}
