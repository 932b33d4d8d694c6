"""Import: what a pasted text would add, and adding it (FEATURES B1)."""

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    extend_schema_field,
    extend_schema_serializer,
)
from rest_framework import serializers
from rest_framework.response import Response

from agents.importing import carry_out, plan_import
from bonobot.lib.problems import Invalid, NotFound
from bonobot.lib.sayings import say
from bonobot.tenancy.api.resources import READ, Resource
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.roles import Action
from mcp_servers.api.configurations import AUTH_CONFIG, ENDPOINT_CONFIG, JSON_OBJECT
from mcp_servers.api.progress import ProgressShape, ask_soon, progress
from mcp_servers.importing import Choices
from mcp_servers.portability.shapes import MOST_SERVERS

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
    allowed_tools = serializers.ListField(
        child=serializers.CharField(), help_text="The tools that it is kept to; empty: all."
    )
    action = serializers.ChoiceField(["add", "refuse", "leave out", "added"])
    server_id = serializers.UUIDField(allow_null=True, help_text="The server, once it is added.")


class OverrideShape(Shape):
    """What one agent gets of one server, as `bot_overrides` says."""

    agent = serializers.CharField()
    server = serializers.CharField()
    line = serializers.IntegerField()
    action = serializers.ChoiceField(["give", "take", "keep", "refuse"])
    allowed_tools = serializers.ListField(child=serializers.CharField())
    denied_tools = serializers.ListField(child=serializers.CharField())
    problems = Objects(help_text="Why it can't be given: code, field, remedy.")


class ImportShape(Shape):
    """What became, or would become, of a text."""

    applied = serializers.BooleanField()
    entries = ImportEntryShape(many=True)
    overrides = OverrideShape(many=True)
    problems = Objects(help_text="What is wrong beside the servers: code, field, line, remedy.")
    notices = Objects(help_text="What should be known of the whole text.")
    progress = serializers.CharField(
        allow_null=True,
        help_text="Where to read how far the added servers are: workers ask them now.",
    )


SERVERS = OpenApiParameter(
    "server", UUID, many=True, required=True, description="A server's id; repeat it for several."
)


class Import(Resource):
    """Import of servers into the pool."""

    rules = {"POST": Action.MANAGE_SERVERS, "GET": READ}

    @operation("import_progress", answer=ProgressShape, parameters=[SERVERS])
    def get(self, request: object) -> Response:
        """Return how far servers are that were added together, as `progress` of an import asks.

        Each is `asking` until it has answered, or failed to, for the first time; `done` says that
        nothing more is to be waited for.
        """
        named = list(dict.fromkeys(self.request.query_params.getlist("server")))
        if not 1 <= len(named) <= MOST_SERVERS:
            raise Invalid(
                say("{count} servers are named.", count=len(named)),
                code="invalid",
                field="server",
                remedy=say(
                    "Name 1 to {most_servers}, as the `progress` of an import does.",
                    most_servers=MOST_SERVERS,
                ),
            )
        ids = [_id(text) for text in named]
        return Response(progress(self.organization_id, ids))

    @operation("import_servers", body=ImportBody, answer=ImportShape)
    def post(self, request: object) -> Response:
        """Preview a pasted configuration, or add what it describes.

        The text may be what any client keeps (`mcpServers`, `servers`, a bare map, one server).
        With `apply` each entry is added whole or not at all; the others keep their problems. A
        server's `allowed_tools` and the `bot_overrides` beside the servers are taken over. The
        answer doesn't wait for the servers: a worker asks them, and `progress` says how far.
        """
        body = self.read(ImportBody)
        choices = Choices(
            values=body.get("fill", {}),
            allow_private=self._allowed(body),
            chosen=body.get("chosen"),
        )
        found = plan_import(self.principal, body["text"], choices)
        if body.get("apply", False):
            carry_out(self.principal, found)
            ask_soon()
        added = [("server", server.pk) for server in found.added.values()]
        where = f"{self.request.path}?{urlencode(added)}" if added else None
        return Response(found.as_dict() | {"progress": where})

    def _allowed(self, body: dict[str, Any]) -> list[str]:
        names: list[str] = body.get("allow_private", [])
        if names:
            self.principal.require(Action.ALLOW_PRIVATE_ADDRESS)
        return names


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(
            say("There is no MCP server {text!r} here.", text=text[:64]),
            field="server",
            remedy="Use the ids that the import answered.",
        ) from None
