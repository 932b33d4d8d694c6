"""Import: what a pasted text would add, and adding it (FEATURES B1)."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.lib.problems import Problem
from bonobot.tenancy.api.resources import Resource
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.api.shapes import AUTH_CONFIG, ENDPOINT_CONFIG, JSON_OBJECT
from mcp_servers.importing import Choices, Planned, plan
from mcp_servers.registration import add

LONGEST_TEXT = 1024 * 1024
MOST_NAMES = 1_000
PASTED = '{"mcpServers": {"docs": {"url": "https://mcp.example.com/mcp"}}}'


def _names(text: str) -> serializers.ListField:
    return serializers.ListField(
        child=serializers.CharField(), required=False, max_length=MOST_NAMES, help_text=text
    )


@extend_schema_serializer(
    examples=[
        OpenApiExample("What would be added", {"text": PASTED}),
        OpenApiExample(
            "Add it, on this host", {"text": PASTED, "apply": True, "allow_private": ["docs"]}
        ),
    ]
)
class ImportBody(Shape):
    """A pasted configuration of any client, and what a person decided about it."""

    text = serializers.CharField(max_length=LONGEST_TEXT, trim_whitespace=False)
    apply = serializers.BooleanField(
        required=False, help_text="Add the entries that hold; left out, nothing is written."
    )
    fill = serializers.DictField(
        child=serializers.CharField(allow_blank=True),
        required=False,
        help_text="Values of the parameters (`${NAME}`) that the text leaves open.",
    )
    allow_private = _names("Entries whose private address a platform administrator allows.")
    chosen = _names("Entries to add; left out, all that hold.")


@extend_schema_field({"type": "array", "items": JSON_OBJECT})
class Objects(serializers.JSONField):
    """A list of objects that another module describes."""


@extend_schema_field(ENDPOINT_CONFIG)
class PreviewedEndpoint(serializers.JSONField):
    """`endpoint_config` as it may be read."""


@extend_schema_field(AUTH_CONFIG)
class PreviewedAuth(serializers.JSONField):
    """`auth_config` as it may be read."""


class ImportEntryShape(Shape):
    """One server of the text: what became, or would become, of it."""

    name = serializers.CharField()
    slug = serializers.CharField()
    line = serializers.IntegerField(help_text="Where it begins in the text.")
    transport_type = serializers.CharField()
    endpoint_config = PreviewedEndpoint()
    auth_config = PreviewedAuth()
    enabled = serializers.BooleanField()
    parameters = Objects(help_text="What has to be filled: name, label, secret, fields.")
    problems = Objects(help_text="Why it can't be added as it stands: code, field, remedy.")
    notices = Objects(help_text="What should be known, though it doesn't stand against it.")
    private = serializers.BooleanField(help_text="Its address is a private one.")
    action = serializers.ChoiceField(["add", "refuse", "leave out", "added"])
    server_id = serializers.UUIDField(allow_null=True, help_text="The server, once it is added.")


class ImportShape(Shape):
    """What became, or would become, of a text."""

    applied = serializers.BooleanField()
    entries = ImportEntryShape(many=True)


class Import(Resource):
    """Import of servers into the pool."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @operation("import_servers", body=ImportBody, answer=ImportShape)
    def post(self, request: object) -> Response:
        """Preview a pasted configuration, or add what it describes.

        The text may be what any client keeps (`mcpServers`, `servers`, a bare map, one server).
        With `apply` each entry is added whole or not at all; the others keep their problems.
        """
        body = self.read(ImportBody)
        choices = Choices(
            values=body.get("fill", {}),
            allow_private=self._allowed(body),
            chosen=body.get("chosen"),
        )
        planned = plan(self.principal, body["text"], choices)
        apply = body.get("apply", False)
        entries = [_added(self.principal, one) if apply else _shown(one) for one in planned]
        return Response({"applied": apply, "entries": entries})

    def _allowed(self, body: dict[str, Any]) -> list[str]:
        names: list[str] = body.get("allow_private", [])
        if names:
            self.principal.require(Action.ALLOW_PRIVATE_ADDRESS)
        return names


def _added(principal: Principal, planned: Planned) -> dict[str, Any]:
    """Add one entry if it is ready, and tell what came of it."""
    if not planned.ready or planned.spec is None:
        return _shown(planned)
    try:
        server = add(principal, planned.spec)
    except Problem as problem:  # somebody took the name since the plan was made
        return _shown(planned) | {"action": "refuse", "problems": [problem.as_dict()]}
    return _shown(planned) | {"action": "added", "server_id": str(server.pk)}


def _shown(planned: Planned) -> dict[str, Any]:
    return planned.as_dict() | {"server_id": None}
