"""A REST client that checks every response against the OpenAPI document."""

import json
import os
from functools import cache
from typing import Any
from urllib.parse import quote

import jsonschema_rs
from django.http import StreamingHttpResponse
from django.test import Client
from django.urls import resolve
from drf_spectacular.generators import SchemaGenerator
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from agents.models import Agent
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from tests import factories
from tests.environment import RUN_FOLDER

PROBLEM = "application/problem+json"


class RestResponse:
    """A response with its decoded body."""

    def __init__(self, response: Any) -> None:
        self.status: int = response.status_code
        self.headers = response.headers
        content_type = response.headers.get("Content-Type", "")
        is_file = isinstance(response, StreamingHttpResponse) and not response.is_async
        content: Any = b"".join(response) if is_file else getattr(response, "content", b"")
        self.text = "" if content_type.startswith("image/") else content.decode()
        is_json = content_type.partition(";")[0].endswith("json")  # JSON Lines are a file
        self.json: Any = json.loads(self.text) if self.text and is_json else None

    @property
    def code(self) -> str:
        """The problem's code."""
        return str(self.json["code"])

    def __repr__(self) -> str:
        return f"{self.status} {self.text[:2000]}"


class RestClient:
    """A client with a token or a signed-in user."""

    def __init__(self, token: str = "", user: User | None = None, *, csrf: bool = False) -> None:
        self._client = Client(enforce_csrf_checks=csrf, raise_request_exception=False)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        if user is not None:
            self._client.force_login(user)

    def get(self, path: str, **headers: str) -> RestResponse:
        """GET `/api/<path>`, or an absolute path."""
        return self.send("GET", path, None, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> RestResponse:
        """POST a JSON body."""
        return self.send("POST", path, body, **headers)

    def put(self, path: str, body: Any = None, **headers: str) -> RestResponse:
        """PUT a JSON body."""
        return self.send("PUT", path, body, **headers)

    def patch(self, path: str, body: Any = None, **headers: str) -> RestResponse:
        """PATCH with a JSON body."""
        return self.send("PATCH", path, body, **headers)

    def delete(self, path: str, **headers: str) -> RestResponse:
        """DELETE."""
        return self.send("DELETE", path, None, **headers)

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> RestResponse:
        """Send a request (bytes are sent unchanged) and check the response against the document."""
        address = path.removeprefix("http://testserver")
        address = address if address.startswith("/") else f"/api/{path}"
        sent_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        response = self._client.generic(
            method,
            address,
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode(),
            content_type=sent_headers.pop("Content-Type", "application/json"),
            headers=self._headers | sent_headers,
        )
        answer = RestResponse(response)
        check_response(method, address.partition("?")[0], answer)
        return answer


def as_role(organization: Organization, role: Role, agent: Agent | None = None) -> RestClient:
    """Return a client with a new token of this role."""
    administrator = factories.build_administrator(organization)
    _, text = create_token(
        administrator, name=f"{role} token", role=role, agent_ids=[agent.pk] if agent else []
    )
    return RestClient(text)


def as_administrator(name: str = "root") -> RestClient:
    """Return a client of a signed-in platform administrator."""
    return RestClient(user=User.objects.create_superuser(name, password="pw-for-tests"))


@cache
def build_document() -> dict[str, Any]:
    """Return the OpenAPI document; the first process of a run builds it for all others."""
    shared = RUN_FOLDER / "openapi.json"
    if shared.exists():
        return json.loads(shared.read_text(encoding="utf-8"))
    text = json.dumps(SchemaGenerator().get_schema(request=None, public=True))
    own = shared.with_name(f"openapi-{os.getpid()}.json")
    own.write_text(text, encoding="utf-8")
    own.replace(shared)  # another process reads a whole file or none
    return json.loads(text)


@cache
def _build_registry() -> Registry[Any]:
    resource = Resource.from_contents(build_document(), default_specification=DRAFT202012)
    return Registry().with_resource("urn:api", resource)


@cache
def build_validator(*path: str) -> Draft202012Validator:
    """Return a validator of the schema at a path in the document."""
    pointer = "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)
    return Draft202012Validator({"$ref": f"urn:api#/{pointer}"}, registry=_build_registry())


@cache
def _build_quick_registry() -> jsonschema_rs.Registry:
    return jsonschema_rs.Registry([("urn:api", build_document())], draft=jsonschema_rs.Draft202012)


@cache
def _build_quick_validator(*path: str) -> jsonschema_rs.Draft202012Validator:
    """Return a validator that is twenty times faster, but describes errors less readably."""
    pointer = quote("/".join(part.replace("~", "~0").replace("/", "~1") for part in path))
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"urn:api#/{pointer}"}, registry=_build_quick_registry(), validate_formats=False
    )


def check_response(method: str, path: str, answer: RestResponse) -> None:
    """Fail unless the document describes this response of the operation."""
    assert answer.status < 500 or answer.json["code"] != "internal_error", answer
    template = "/" + resolve(path).route.replace("<str:", "{").replace(">", "}")
    path_in_document = ("paths", template, method.lower())
    operation = build_document()["paths"].get(template, {}).get(method.lower())
    if operation is None or answer.status in (405, 413, 415):
        return
    response = operation["responses"].get(str(answer.status))
    assert response, f"{method} {path}: the document has no {answer!r}"
    if answer.json is None:
        return
    content_type = answer.headers["Content-Type"].partition(";")[0]
    assert (content_type == PROBLEM) == (answer.status >= 400), answer
    schema = (
        *(*path_in_document, "responses", str(answer.status)),
        *("content", content_type, "schema"),
    )
    if not _build_quick_validator(*schema).is_valid(answer.json):
        errors = build_validator(*schema).iter_errors(answer.json)
        described = [f"{e.json_path}: {e.message[:300]}" for e in errors]
        raise AssertionError(f"{method} {path}: {described or answer}")
