"""Definitions of a server: list, review, label, enable and disable."""

from typing import Any

import django_filters
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictBooleanFilter, StrictFilterSet
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, NotFound
from mcp_servers.api.serializers import JSON_OBJECT
from mcp_servers.api.servers import ServerView
from mcp_servers.definition_reviews import (
    MAX_REASON_LENGTH,
    approve_definitions,
    reject_definition,
    reset_review,
    set_definition_enabled,
)
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import load_label_context, set_labels, suggest_labels
from mcp_servers.models import Definition


class DefinitionFilter(StrictFilterSet):
    """Filters for the list of definitions."""

    kind = django_filters.ChoiceFilter(choices=Definition.Kind.choices)
    state = django_filters.ChoiceFilter(choices=Definition.State.choices, method="filter_by_state")
    enabled = StrictBooleanFilter()
    q = django_filters.CharFilter(
        field_name="name", lookup_expr="icontains", label="Part of the name"
    )

    def filter_by_state(self, rows: Any, name: str, value: str) -> Any:
        return rows.in_state(value)


class FindingSerializer(StrictSerializer):
    """A suspicious passage in a declaration."""

    tier = serializers.CharField()
    rule = serializers.CharField()
    path = serializers.CharField()
    excerpt = serializers.CharField()
    start = serializers.IntegerField(
        default=0, help_text="Offset in the text at this path, in characters."
    )
    end = serializers.IntegerField(default=0)


class DefinitionSerializer(VersionedSerializer):
    """A definition: what the server declares now, and what was approved."""

    id = serializers.UUIDField()
    kind = serializers.ChoiceField(Definition.Kind.choices)
    name = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    state = serializers.ChoiceField(Definition.State.choices)
    enabled = serializers.BooleanField()
    digest = serializers.CharField(help_text="Digest of the whole declaration; used to approve it.")
    declaration = serializers.SerializerMethodField(
        help_text="The declaration as the server sent it."
    )
    approved_digest = serializers.CharField(source="pinned_digest")
    approved_declaration = serializers.SerializerMethodField()
    approved_at = serializers.DateTimeField(source="pinned_at", allow_null=True)
    approved_by = serializers.CharField(source="pinned_by")
    rejected_digest = serializers.CharField()
    rejected_at = serializers.DateTimeField(allow_null=True)
    rejected_by = serializers.CharField()
    rejection_reason = serializers.CharField()
    schema_verdict = serializers.CharField()
    fault = serializers.CharField(help_text="Why it can never be used; empty if it can.")
    findings = FindingSerializer(many=True)
    last_seen_at = serializers.DateTimeField(allow_null=True)
    labels = serializers.ListField(
        child=serializers.ChoiceField([str(label) for label in FlowLabel]),
        allow_null=True,
        help_text="Flow labels set by a person; null: the suggested labels apply.",
    )
    labels_suggested = serializers.SerializerMethodField(
        help_text="Suggested flow labels, from the declaration and the preset catalog."
    )

    @extend_schema_field(
        {"type": "array", "items": {"type": "string", "enum": [str(label) for label in FlowLabel]}}
    )
    def get_labels_suggested(self, row: Definition) -> list[str]:
        """Return the suggested labels."""
        return [*suggest_labels(row, load_label_context(row.server))]

    @extend_schema_field(JSON_OBJECT)
    def get_declaration(self, row: Definition) -> Any:
        """Return the declaration with all its fields."""
        return row.payload

    @extend_schema_field({**JSON_OBJECT, "type": ["object", "null"]})
    def get_approved_declaration(self, row: Definition) -> Any:
        """Return the approved declaration, or null."""
        return row.pinned


class DefinitionDigestSerializer(StrictSerializer):
    """A definition, and the digest that was reviewed."""

    id = serializers.UUIDField()
    digest = serializers.CharField(max_length=64)


class ApproveDefinitionsBody(StrictSerializer):
    """The definitions to approve: reviewed ones, or all that are pending review."""

    definitions = DefinitionDigestSerializer(many=True, required=False)
    all = serializers.BooleanField(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Require exactly one of `definitions` and `all`."""
        if bool(attrs.get("definitions")) == bool(attrs.get("all")):
            raise InvalidInput(
                "Specify which definitions to approve.",
                field="definitions",
                remedy='Send `{"definitions": [{"id", "digest"}]}` or `{"all": true}`.',
            )
        return attrs


class ApproveDefinitionBody(StrictSerializer):
    """The digest that was reviewed."""

    digest = serializers.CharField(max_length=64)


class RejectDefinitionBody(StrictSerializer):
    """The digest that was reviewed, and why it is rejected."""

    digest = serializers.CharField(max_length=64)
    reason = serializers.CharField(max_length=MAX_REASON_LENGTH)


class EnableDefinitionBody(VersionedBody):
    """Whether the definition is enabled."""

    enabled = serializers.BooleanField()


DefinitionSerializer.body_classes = (EnableDefinitionBody,)


LABELS = serializers.ListField(
    child=serializers.CharField(max_length=40),
    allow_null=True,
    help_text="`private_data`, `untrusted_content`, `sends_out`; null: the suggested labels apply.",
)


class DefinitionLabelsBody(StrictSerializer):
    """Definitions by kind and name, and their flow labels."""

    kind = serializers.ChoiceField(Definition.Kind.choices, default=Definition.Kind.TOOL)
    names = serializers.ListField(
        child=serializers.CharField(max_length=512), allow_empty=False, max_length=1_000
    )
    labels = LABELS


class DefinitionReviewSerializer(StrictSerializer):
    """The result of an approval."""

    approved = serializers.ListField(child=serializers.CharField())
    skipped = serializers.ListField(
        child=serializers.CharField(),
        help_text=(
            "Changed since they were reviewed, rejected, or no longer declared; review them again."
        ),
    )
    needs_review = serializers.ListField(
        child=serializers.CharField(),
        help_text=(
            "Have findings, or changed since their approval: review them, then approve them by "
            "their digests."
        ),
    )
    pending_review = serializers.IntegerField(
        help_text="Number of definitions still pending review."
    )


class DefinitionListView(ServerView):
    """The definitions of a server; `kind` filters them."""

    rules = {"GET": READ}
    queryset = Definition.objects.none()
    filterset_class = DefinitionFilter
    ordering = ("name", "pk")
    kinds: tuple[str, ...] = ()
    orderings = ("name", "kind", "title")

    @describe_operation("list_definitions", answer=DefinitionSerializer(many=True))
    def get(self, request: object, server_id: str) -> Response:
        """List a server's definitions with their review states."""
        rows = self.get_server(server_id).definitions.all()
        return self.respond_page(
            rows.filter(kind__in=self.kinds) if self.kinds else rows, DefinitionSerializer
        )


class ServerToolListView(DefinitionListView):
    """A server's tools."""

    kinds = (Definition.Kind.TOOL,)

    @describe_operation("list_server_tools", answer=DefinitionSerializer(many=True))
    def get(self, request: object, server_id: str) -> Response:
        """List a server's tools."""
        return super().get(request, server_id)


class ServerResourceListView(DefinitionListView):
    """A server's resources, resource templates and skills."""

    kinds = (
        Definition.Kind.RESOURCE,
        Definition.Kind.RESOURCE_TEMPLATE,
        Definition.Kind.SKILL,
    )

    @describe_operation("list_server_resources", answer=DefinitionSerializer(many=True))
    def get(self, request: object, server_id: str) -> Response:
        """List a server's resources, resource templates, and skills."""
        return super().get(request, server_id)


class ServerPromptListView(DefinitionListView):
    """A server's prompts."""

    kinds = (Definition.Kind.PROMPT,)

    @describe_operation("list_server_prompts", answer=DefinitionSerializer(many=True))
    def get(self, request: object, server_id: str) -> Response:
        """List a server's prompts."""
        return super().get(request, server_id)


class ApproveDefinitionsView(ServerView):
    """Approval of several definitions at once."""

    rules = {"POST": Action.APPROVE_DEFINITIONS}

    @describe_operation(
        "approve_definitions", body=ApproveDefinitionsBody, answer=DefinitionReviewSerializer
    )
    def post(self, request: object, server_id: str) -> Response:
        """Approve the reviewed versions of definitions.

        Each definition has the digest that was reviewed; if it has changed, the definition is
        skipped. `all` doesn't approve changed definitions or those with findings (`needs_review`):
        approve those by their digest.
        """
        server = self.get_server(server_id)
        body = self.read_body(ApproveDefinitionsBody)
        requested = body.get("definitions")
        digests = {entry["id"]: entry["digest"] for entry in requested} if requested else None
        result = approve_definitions(self.principal, server, digests)
        pending_review = server.definitions.awaiting_review().count()
        answer = {
            "approved": result.approved,
            "skipped": result.skipped,
            "needs_review": result.needs_review,
            "pending_review": pending_review,
        }
        return self.respond_row(answer, DefinitionReviewSerializer)


class DefinitionLabelsView(ServerView):
    """The flow labels of a server's definitions."""

    rules = {"PUT": Action.APPROVE_DEFINITIONS}

    @describe_operation("label_definitions", body=DefinitionLabelsBody, answer=DefinitionLabelsBody)
    def put(self, request: object, server_id: str) -> Response:
        """Set the flow labels of definitions; effective on the next call.

        If a session, token, or agent has private data and untrusted content, a call with an
        external effect requires approval.
        """
        server = self.get_server(server_id)
        body = self.read_body(DefinitionLabelsBody)
        names = body["names"]
        rows = list(server.definitions.filter(kind=body["kind"], name__in=names))
        if missing := sorted({*names} - {row.name for row in rows}):
            raise NotFound(
                format_message(
                    "{server} has no {kind} {name!r}.",
                    server=server.name,
                    kind=body["kind"],
                    name=missing[0],
                ),
                field="names",
            )
        labels = set_labels(self.principal, server, rows, body["labels"])
        return self.respond_row(body | {"labels": labels}, DefinitionLabelsBody)


class DefinitionView(ServerView):
    """Base class of the views of one definition."""

    def get_definition(self, server_id: str, definition_id: str) -> Definition:
        """Return the definition; raises `NotFound`."""
        rows = self.get_server(server_id).definitions.all()
        return self.get_row(Definition, rows, definition_id=definition_id)


class DefinitionDetailView(DefinitionView):
    """One definition."""

    rules = {"GET": READ, "PATCH": Action.MANAGE_SERVERS}

    @describe_operation("get_definition", answer=DefinitionSerializer)
    def get(self, request: object, server_id: str, definition_id: str) -> Response:
        """Get a definition as declared and as approved."""
        return self.respond_row(self.get_definition(server_id, definition_id), DefinitionSerializer)

    @describe_operation("update_definition", body=EnableDefinitionBody, answer=DefinitionSerializer)
    def patch(self, request: object, server_id: str, definition_id: str) -> Response:
        """Enable or disable a definition for all agents."""
        row = self.get_definition(server_id, definition_id)
        set_definition_enabled(
            self.principal, row, enabled=self.read_body(EnableDefinitionBody)["enabled"]
        )
        return self.respond_row(self.get_definition(server_id, definition_id), DefinitionSerializer)


class ApproveDefinitionView(DefinitionView):
    """Approval of one definition."""

    rules = {"POST": Action.APPROVE_DEFINITIONS, "DELETE": Action.APPROVE_DEFINITIONS}

    @describe_operation(
        "approve_definition", body=ApproveDefinitionBody, answer=DefinitionSerializer
    )
    def post(self, request: object, server_id: str, definition_id: str) -> Response:
        """Approve the reviewed version of a definition."""
        row = self.get_definition(server_id, definition_id)
        digest = self.read_body(ApproveDefinitionBody)["digest"]
        approve_definitions(self.principal, self.get_server(server_id), {row.pk: digest})
        return self.respond_row(self.get_definition(server_id, definition_id), DefinitionSerializer)

    @describe_operation("revoke_definition_approval", answer=DefinitionSerializer)
    def delete(self, request: object, server_id: str, definition_id: str) -> Response:
        """Revoke the approval of a definition; it is pending review and can't be called."""
        reset_review(self.principal, self.get_definition(server_id, definition_id))
        return self.respond_row(self.get_definition(server_id, definition_id), DefinitionSerializer)


class RejectDefinitionView(DefinitionView):
    """Rejection of one definition."""

    rules = {"POST": Action.APPROVE_DEFINITIONS}

    @describe_operation("reject_definition", body=RejectDefinitionBody, answer=DefinitionSerializer)
    def post(self, request: object, server_id: str, definition_id: str) -> Response:
        """Reject the reviewed version of a definition that is pending review.

        It can't be called, and can be approved later. Problems: `nothing_rejected`.
        """
        row = self.get_definition(server_id, definition_id)
        body = self.read_body(RejectDefinitionBody)
        reject_definition(self.principal, row, body["digest"], body["reason"])
        return self.respond_row(self.get_definition(server_id, definition_id), DefinitionSerializer)
