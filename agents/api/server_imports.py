"""REST of server imports and their progress: /mcp-servers/import."""

from collections import Counter
from collections.abc import Sequence
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

from agents.server_imports import apply_import, plan_import
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, ResourceView, require_row
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer
from bonobot.core.celery_tasks import enqueue_task_on_commit
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, NotFound
from mcp_servers.api.serializers import AUTH_CONFIG, ENDPOINT_CONFIG, JSON_OBJECT
from mcp_servers.api.servers import add_server_annotations
from mcp_servers.import_export.detect_format import MAX_SERVERS
from mcp_servers.import_export.import_plan import ImportChoices
from mcp_servers.models import Server

CHECK_DUE = "mcp_servers.tasks.check_due"
STATES = ("asking", "connected", "error", "needs_reauth", "disabled")


class ServerProgressSerializer(StrictSerializer):
    """One server, as far as it is."""

    server_id = serializers.UUIDField()
    name = serializers.CharField()
    state = serializers.ChoiceField(
        STATES, help_text="`asking` until it has answered, or failed to, for the first time."
    )
    code = serializers.CharField(help_text="Of the failure, blank if none.")
    detail = serializers.CharField(help_text="What failed and what to do.")
    tools = serializers.IntegerField(help_text="How many it offers.")
    waiting = serializers.IntegerField(help_text="How many definitions wait for approval.")


@extend_schema_field({"type": "object", "additionalProperties": {"type": "integer"}})
class StateCountsField(serializers.DictField):
    """How many servers are in each state."""


class ImportProgressSerializer(StrictSerializer):
    """How far all of them are."""

    done = serializers.BooleanField(help_text="Every one was asked, or isn't to be asked.")
    total = serializers.IntegerField()
    counts = StateCountsField()
    servers = ServerProgressSerializer(many=True)


def enqueue_server_checks() -> None:
    """Enqueue the checks that are due, which includes new servers."""
    enqueue_task_on_commit(CHECK_DUE)


def load_import_progress(organization_id: UUID, ids: Sequence[UUID]) -> dict[str, Any]:
    """Return the progress of these servers (a fixed number of queries); raises `NotFound`."""
    rows_of_organization = Server.objects.for_organization(organization_id).filter(pk__in=ids)
    rows = {server.pk: server for server in add_server_annotations(rows_of_organization)}
    servers = [_build_server_progress(require_row(rows.get(pk), "MCP server", pk)) for pk in ids]
    counts = Counter(str(server["state"]) for server in servers)
    return {
        "done": not counts["asking"],
        "total": len(servers),
        "counts": {state: counts[state] for state in STATES},
        "servers": servers,
    }


def _build_server_progress(server: Any) -> dict[str, Any]:
    return {
        "server_id": str(server.pk),
        "name": server.name,
        "state": _get_progress_state(server),
        "code": server.status_code,
        "detail": server.status_detail,
        "tools": server.tool_count,
        "waiting": server.waiting_count,
    }


def _get_progress_state(server: Server) -> str:
    if not server.enabled:
        return "disabled"
    unchecked_states = (Server.Status.DISCONNECTED, Server.Status.CONNECTING)
    return "asking" if server.status in unchecked_states else server.status


MAX_TEXT_LENGTH = 1024 * 1024
MAX_NAMES = 1_000
EXAMPLE_TEXT = '{"mcpServers": {"docs": {"url": "https://mcp.example.com/mcp"}}}'


def _build_names_field(help_text: str) -> serializers.ListField:
    return serializers.ListField(
        child=serializers.CharField(), required=False, max_length=MAX_NAMES, help_text=help_text
    )


@extend_schema_serializer(
    examples=[
        OpenApiExample("What would be added", {"text": EXAMPLE_TEXT}),
        OpenApiExample(
            "Add it, on this host", {"text": EXAMPLE_TEXT, "apply": True, "allow_private": ["docs"]}
        ),
    ]
)
class ImportBody(StrictSerializer):
    """A pasted configuration of any client, and what a person decided about it."""

    text = serializers.CharField(max_length=MAX_TEXT_LENGTH, trim_whitespace=False)
    apply = serializers.BooleanField(
        required=False, help_text="Add the entries that hold; left out, nothing is written."
    )
    fill = serializers.DictField(
        child=serializers.CharField(allow_blank=True),
        required=False,
        help_text="Values of the parameters (`${NAME}`) that the text leaves open.",
    )
    allow_private = _build_names_field(
        "Entries whose private address a platform administrator allows."
    )
    chosen = _build_names_field("Entries to add; left out, all that hold.")


@extend_schema_field({"type": "array", "items": JSON_OBJECT})
class ObjectListField(serializers.JSONField):
    """A list of objects that another module describes."""


@extend_schema_field(ENDPOINT_CONFIG)
class PreviewEndpointConfigField(serializers.JSONField):
    """`endpoint_config` as it may be read."""


@extend_schema_field(AUTH_CONFIG)
class PreviewAuthConfigField(serializers.JSONField):
    """`auth_config` as it may be read."""


class ImportEntrySerializer(StrictSerializer):
    """One server of the text: what became, or would become, of it."""

    name = serializers.CharField()
    slug = serializers.CharField()
    line = serializers.IntegerField(help_text="Where it begins in the text.")
    transport_type = serializers.CharField()
    endpoint_config = PreviewEndpointConfigField()
    auth_config = PreviewAuthConfigField()
    enabled = serializers.BooleanField()
    parameters = ObjectListField(help_text="What has to be filled: name, label, secret, fields.")
    problems = ObjectListField(help_text="Why it can't be added as it stands: code, field, remedy.")
    notices = ObjectListField(help_text="What should be known, though it doesn't stand against it.")
    private = serializers.BooleanField(help_text="Its address is a private one.")
    allowed_tools = serializers.ListField(
        child=serializers.CharField(), help_text="The tools that it is kept to; empty: all."
    )
    action = serializers.ChoiceField(["add", "refuse", "leave out", "added"])
    server_id = serializers.UUIDField(allow_null=True, help_text="The server, once it is added.")


class AgentOverrideSerializer(StrictSerializer):
    """What one agent gets of one server, as `bot_overrides` says."""

    agent = serializers.CharField()
    server = serializers.CharField()
    line = serializers.IntegerField()
    action = serializers.ChoiceField(["give", "take", "keep", "refuse"])
    allowed_tools = serializers.ListField(child=serializers.CharField())
    denied_tools = serializers.ListField(child=serializers.CharField())
    problems = ObjectListField(help_text="Why it can't be given: code, field, remedy.")


class ServerImportSerializer(StrictSerializer):
    """What became, or would become, of a text."""

    applied = serializers.BooleanField()
    entries = ImportEntrySerializer(many=True)
    overrides = AgentOverrideSerializer(many=True)
    problems = ObjectListField(
        help_text="What is wrong beside the servers: code, field, line, remedy."
    )
    notices = ObjectListField(help_text="What should be known of the whole text.")
    progress = serializers.CharField(
        allow_null=True,
        help_text="Where to read how far the added servers are: workers ask them now.",
    )


SERVER_PARAMETER = OpenApiParameter(
    "server", UUID, many=True, required=True, description="A server's id; repeat it for several."
)


class ImportServersView(ResourceView):
    """Import of servers into the pool."""

    rules = {"POST": Action.MANAGE_SERVERS, "GET": READ}

    @describe_operation(
        "import_progress", answer=ImportProgressSerializer, parameters=[SERVER_PARAMETER]
    )
    def get(self, request: object) -> Response:
        """Return how far servers are that were added together, as `progress` of an import asks.

        Each is `asking` until it has answered, or failed to, for the first time; `done` says that
        nothing more is to be waited for.
        """
        server_ids = list(dict.fromkeys(self.request.query_params.getlist("server")))
        if not 1 <= len(server_ids) <= MAX_SERVERS:
            raise InvalidInput(
                format_message("{count} servers are named.", count=len(server_ids)),
                code="invalid",
                field="server",
                remedy=format_message(
                    "Name 1 to {most_servers}, as the `progress` of an import does.",
                    most_servers=MAX_SERVERS,
                ),
            )
        ids = [_parse_server_id(text) for text in server_ids]
        return Response(load_import_progress(self.organization_id, ids))

    @describe_operation("import_servers", body=ImportBody, answer=ServerImportSerializer)
    def post(self, request: object) -> Response:
        """Preview a pasted configuration, or add what it describes.

        The text may be what any client keeps (`mcpServers`, `servers`, a bare map, one server).
        With `apply` each entry is added whole or not at all; the others keep their problems. A
        server's `allowed_tools` and the `bot_overrides` beside the servers are taken over. The
        answer doesn't wait for the servers: a worker asks them, and `progress` says how far.
        """
        body = self.read_body(ImportBody)
        choices = ImportChoices(
            values=body.get("fill", {}),
            allow_private=self._get_allowed_private(body),
            chosen=body.get("chosen"),
        )
        server_import = plan_import(self.principal, body["text"], choices)
        if body.get("apply", False):
            apply_import(self.principal, server_import)
            enqueue_server_checks()
        query_pairs = [("server", server.pk) for server in server_import.added.values()]
        progress_url = f"{self.request.path}?{urlencode(query_pairs)}" if query_pairs else None
        return Response(server_import.as_dict() | {"progress": progress_url})

    def _get_allowed_private(self, body: dict[str, Any]) -> list[str]:
        names: list[str] = body.get("allow_private", [])
        if names:
            self.principal.require(Action.ALLOW_PRIVATE_ADDRESS)
        return names


def _parse_server_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(
            format_message("There is no MCP server {text!r} here.", text=text[:64]),
            field="server",
            remedy="Use the ids that the import answered.",
        ) from None
