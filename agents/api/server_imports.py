"""REST of server imports and their progress: /mcp-servers/import."""

import base64
import binascii
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from drf_spectacular.utils import (
    OpenApiParameter,
    extend_schema_field,
)
from rest_framework import serializers
from rest_framework.response import Response

from agents.server_imports import apply_import, approve_added_servers, plan_import
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, ResourceView, require_row
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer
from bonobot.core.celery_tasks import enqueue_task_on_commit
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, NotFound
from mcp_servers.api.serializers import AUTH_CONFIG, ENDPOINT_CONFIG, JSON_OBJECT
from mcp_servers.api.servers import add_server_annotations
from mcp_servers.bundles.services import store_bundle
from mcp_servers.import_export.detect_format import MAX_SERVERS
from mcp_servers.import_export.import_plan import ImportChoices
from mcp_servers.import_export.registry_client import fetch_registry
from mcp_servers.models import Server

CHECK_DUE = "mcp_servers.tasks.check_due_servers"
STATES = ("asking", "connected", "error", "needs_reauth", "disabled")
MAX_TEXT_LENGTH = 1024 * 1024
MAX_URL_LENGTH = 2_000
MAX_BUNDLE_LENGTH = 4 * 1024 * 1024  # in Base64; the whole body isn't larger
MAX_NAMES = 1_000
SERVER_PARAMETER = OpenApiParameter(
    "server",
    UUID,
    many=True,
    required=True,
    description="ID of a server; repeat the parameter for several.",
)


class ServerProgressSerializer(StrictSerializer):
    """The progress of one server."""

    server_id = serializers.UUIDField()
    name = serializers.CharField()
    state = serializers.ChoiceField(
        STATES, help_text="`asking` until the server has connected or failed for the first time."
    )
    code = serializers.CharField(help_text="Code of the failure; empty if there is none.")
    detail = serializers.CharField(help_text="What failed, and what to do.")
    tools = serializers.IntegerField(help_text="Number of tools.")
    pending_review = serializers.IntegerField(help_text="Number of definitions pending review.")


@extend_schema_field({"type": "object", "additionalProperties": {"type": "integer"}})
class StateCountsField(serializers.DictField):
    """The number of servers in each state."""


class ImportProgressSerializer(StrictSerializer):
    """The progress of an import."""

    done = serializers.BooleanField(help_text="True if no server is still `asking`.")
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
        "pending_review": server.waiting_count,
    }


def _get_progress_state(server: Server) -> str:
    if not server.enabled:
        return "disabled"
    unchecked_states = (Server.Status.DISCONNECTED, Server.Status.CONNECTING)
    return "asking" if server.status in unchecked_states else server.status


def _build_names_field(help_text: str) -> serializers.ListField:
    return serializers.ListField(
        child=serializers.CharField(), required=False, max_length=MAX_NAMES, help_text=help_text
    )


class ImportBody(StrictSerializer):
    """The servers to import, as `text`, in a `registry` or a `bundle`, and the options."""

    text = serializers.CharField(required=False, max_length=MAX_TEXT_LENGTH, trim_whitespace=False)
    registry = serializers.CharField(
        required=False,
        max_length=MAX_URL_LENGTH,
        help_text="Instead of `text`: base URL of an MCP registry, or the URL of a `server.json`.",
    )
    bundle = serializers.CharField(
        required=False,
        max_length=MAX_BUNDLE_LENGTH,
        help_text="Instead of `text`: a `.mcpb` bundle of at most 3 MB, in Base64. Requires a "
        "platform administrator.",
    )
    search = serializers.CharField(
        required=False, max_length=255, help_text="With `registry`: part of the servers' names."
    )
    apply = serializers.BooleanField(
        required=False, help_text="Add the valid entries. Default: preview only."
    )
    approve = serializers.BooleanField(
        required=False,
        help_text="With `apply`: discover the added servers at once and approve their definitions, "
        "except suspicious ones. Requires permission to review definitions. Without it, "
        "definitions are pending review.",
    )
    fill = serializers.DictField(
        child=serializers.CharField(allow_blank=True),
        required=False,
        help_text="Values for the parameters (`${NAME}`) in the text.",
    )
    allow_private = _build_names_field(
        "Entries whose private address is allowed; requires a platform administrator."
    )
    chosen = _build_names_field("Entries to add. Default: all valid entries.")


@extend_schema_field({"type": "array", "items": JSON_OBJECT})
class ObjectListField(serializers.JSONField):
    """A list of objects."""


@extend_schema_field(ENDPOINT_CONFIG)
class PreviewEndpointConfigField(serializers.JSONField):
    """`endpoint_config` with secrets masked."""


@extend_schema_field(AUTH_CONFIG)
class PreviewAuthConfigField(serializers.JSONField):
    """`auth_config` with secrets masked."""


@extend_schema_field(JSON_OBJECT)
class DiscoveryField(serializers.JSONField):
    """The result of a discovery, or its problem."""


class ImportEntrySerializer(StrictSerializer):
    """One server of the configuration, and what happens to it."""

    name = serializers.CharField()
    slug = serializers.CharField()
    line = serializers.IntegerField(help_text="Line number in the text.")
    transport_type = serializers.CharField()
    endpoint_config = PreviewEndpointConfigField()
    auth_config = PreviewAuthConfigField()
    enabled = serializers.BooleanField()
    parameters = ObjectListField(help_text="Parameters to fill in: name, label, secret, fields.")
    problems = ObjectListField(help_text="Why the entry can't be added: code, field, remedy.")
    notices = ObjectListField(help_text="Notes that don't prevent adding the entry.")
    private = serializers.BooleanField(help_text="True if its address is private.")
    allowed_tools = serializers.ListField(
        child=serializers.CharField(), help_text="The allowed tools; empty: all."
    )
    action = serializers.ChoiceField(["add", "invalid", "skip", "added"])
    server_id = serializers.UUIDField(
        allow_null=True, help_text="ID of the server, after it is added."
    )
    discovery = DiscoveryField(
        allow_null=True,
        help_text="With `approve`, what the discovery of the added server found: `status` "
        "(`connected`, `error`), `tools`, `pending_review` and `refused`, or `code`, `detail`, "
        "`remedy`.",
    )


class AgentOverrideSerializer(StrictSerializer):
    """What one agent gets of one server, from `bot_overrides`."""

    agent = serializers.CharField()
    server = serializers.CharField()
    line = serializers.IntegerField()
    action = serializers.ChoiceField(["attach", "detach", "unchanged", "invalid"])
    allowed_tools = serializers.ListField(child=serializers.CharField())
    denied_tools = serializers.ListField(child=serializers.CharField())
    problems = ObjectListField(help_text="Why it can't be attached: code, field, remedy.")


class ServerImportSerializer(StrictSerializer):
    """The result or preview of an import."""

    applied = serializers.BooleanField()
    entries = ImportEntrySerializer(many=True)
    overrides = AgentOverrideSerializer(many=True)
    problems = ObjectListField(
        help_text="Problems outside the server entries: code, field, line, remedy."
    )
    notices = ObjectListField(help_text="Notes on the whole text.")
    progress = serializers.CharField(
        allow_null=True,
        help_text="URL for the progress of the added servers, which workers discover now.",
    )


class ImportServersView(ResourceView):
    """Import of servers into the pool."""

    rules = {"POST": Action.MANAGE_SERVERS, "GET": READ}

    @describe_operation(
        "get_import_progress", answer=ImportProgressSerializer, parameters=[SERVER_PARAMETER]
    )
    def get(self, request: object) -> Response:
        """Get the progress of servers that were added by an import.

        A server is `asking` until it has connected or failed for the first time. `done` is true if
        no server is still `asking`.
        """
        server_ids = list(dict.fromkeys(self.request.query_params.getlist("server")))
        if not 1 <= len(server_ids) <= MAX_SERVERS:
            raise InvalidInput(
                format_message("{count} servers were specified.", count=len(server_ids)),
                code="invalid",
                field="server",
                remedy=format_message(
                    "Specify 1 to {most_servers} servers, as in the `progress` of an import.",
                    most_servers=MAX_SERVERS,
                ),
            )
        ids = [_parse_server_id(text) for text in server_ids]
        return Response(load_import_progress(self.organization_id, ids))

    @describe_operation("import_servers", body=ImportBody, answer=ServerImportSerializer, asks=True)
    def post(self, request: object) -> Response:
        """Import servers from a configuration or a registry, or preview the import.

        The text can be the configuration of any MCP client (`mcpServers`, `servers`, a map of
        servers, or one server), a `server.json`, or a registry's list; a `bundle` is a `.mcpb`
        file, which is kept for a day if no server is added from it. With `apply`, each entry is
        added completely or not at all; entries with problems are skipped. `allowed_tools` of
        servers and `bot_overrides` are imported.

        The response doesn't wait for the servers: workers scan them, and `progress` is the URL of
        their progress. With `approve`, the servers are discovered at once and their definitions are
        approved, except suspicious ones; each entry has the result (`discovery`).
        """
        body = self.read_body(ImportBody)
        choices = ImportChoices(
            values=body.get("fill", {}),
            allow_private=self._get_allowed_private(body),
            chosen=body.get("chosen"),
        )
        approves = self._takes_approval(body)
        server_import = plan_import(self.principal, self._get_text(body), choices)
        if body.get("apply", False):
            apply_import(self.principal, server_import)
            if approves:
                approve_added_servers(self.principal, server_import)
            else:
                enqueue_server_checks()
        query_pairs = [("server", server.pk) for server in server_import.added.values()]
        progress_url = f"{self.request.path}?{urlencode(query_pairs)}" if query_pairs else None
        return Response(server_import.as_dict() | {"progress": progress_url})

    def _get_text(self, body: dict[str, Any]) -> str:
        if sum(source in body for source in ("text", "registry", "bundle")) != 1:
            raise InvalidInput(
                "Exactly one source is required.",
                code="no_source",
                field="text",
                remedy="Send either `text`, `registry`, or `bundle`.",
            )
        if "bundle" in body:
            return store_bundle(self.principal, _decode_bundle(body["bundle"]))
        if "text" in body:
            return str(body["text"])
        return fetch_registry(self.principal, body["registry"], search=body.get("search", ""))

    def _takes_approval(self, body: dict[str, Any]) -> bool:
        approves: bool = body.get("approve", False)
        if approves:
            self.principal.require(Action.APPROVE_DEFINITIONS)
            if not body.get("apply", False):
                raise InvalidInput(
                    format_message("A preview adds no servers, so nothing can be approved."),
                    code="no_effect",
                    field="approve",
                    remedy="Add `apply`, or omit `approve`.",
                )
        return approves

    def _get_allowed_private(self, body: dict[str, Any]) -> list[str]:
        names: list[str] = body.get("allow_private", [])
        if names:
            self.principal.require(Action.ALLOW_PRIVATE_ADDRESS)
        return names


def _decode_bundle(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(
            format_message("`bundle` isn't Base64."),
            code="invalid",
            field="bundle",
            remedy="Encode the bytes of the `.mcpb` file in Base64.",
        ) from None


def _parse_server_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(
            format_message("The server {name!r} doesn't exist.", name=text[:64]),
            field="server",
            remedy="Use the IDs that the import returned.",
        ) from None
