"""REST of approvals: calls that wait for a person, and session approvals."""

from functools import cached_property
from uuid import UUID

import django_filters
from django.utils import timezone
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentRowFilter
from agents.api.sessions import SessionView
from agents.approvals.changed_definitions import find_outdated_approvals, format_definition_diff
from agents.approvals.services import (
    ANSWERS,
    MAX_MESSAGE_LENGTH,
    resolve_approval,
    revoke_session_approval,
)
from agents.models import Approval, SessionApproval
from agents.models.page_urls import build_page_url
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ_OR_RUN, ResourceView
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer
from mcp_servers.models import Definition


class ApprovalFilter(AgentRowFilter):
    """Filters for the list of approvals."""

    state = django_filters.ChoiceFilter(choices=Approval.State.choices)
    session = django_filters.UUIDFilter(field_name="session_id")
    server = django_filters.CharFilter(field_name="server_name", label="Name of the server")
    tool = django_filters.CharFilter(field_name="own_name", label="The tool's own name")
    rule = django_filters.CharFilter(field_name="rule", label="The rule that required approval")
    since = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")
    until = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="lt")


class CallApprovalSerializer(StrictSerializer):
    """An approval: a call that waits for a person, and the decision."""

    id = serializers.UUIDField()
    state = serializers.ChoiceField(Approval.State.choices)
    agent_id = serializers.UUIDField(allow_null=True)
    session_id = serializers.UUIDField(allow_null=True)
    call_id = serializers.UUIDField()
    server_id = serializers.UUIDField(allow_null=True)
    server = serializers.CharField(source="server_name")
    tool = serializers.CharField(source="own_name", help_text="The tool's name on its server.")
    name = serializers.CharField(source="label", help_text="The tool's name as the caller sees it.")
    method = serializers.CharField()
    arguments = serializers.DictField(help_text="Secrets are masked.")
    requested_arguments = serializers.DictField(
        allow_null=True,
        help_text="The arguments before the approver changed them; null if they are unchanged.",
    )
    arguments_digest = serializers.CharField()
    definition_digest = serializers.CharField()
    definition_changed = serializers.SerializerMethodField(
        help_text="Whether the server changed the definition of the pending call: it can only be "
        "denied, and a new approval is requested after the review of the definition.",
    )
    definition_diff = serializers.SerializerMethodField(
        help_text="If the definition changed: its lines that differ from the approved definition, "
        "with `+` and `-`; empty if the new definition is approved.",
    )
    rule = serializers.CharField()
    code = serializers.CharField()
    reason = serializers.CharField()
    flow_labels = serializers.ListField(
        child=serializers.CharField(),
        help_text="Flow labels of the caller before the call.",
    )
    requested_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    decided_at = serializers.DateTimeField(allow_null=True)
    decided_by = serializers.CharField()
    message = serializers.CharField()
    url = serializers.SerializerMethodField(help_text="URL of the page where a person decides.")

    def get_url(self, approval: Approval) -> str:
        return build_page_url(approval)

    def get_definition_changed(self, approval: Approval) -> bool:
        return approval.pk in self._outdated_approvals

    def get_definition_diff(self, approval: Approval) -> str:
        definition = self._outdated_approvals.get(approval.pk)
        return "" if definition is None else format_definition_diff(definition)

    @cached_property
    def _outdated_approvals(self) -> dict[UUID, Definition]:
        """Read for all approvals of the response (at most one query)."""
        rows = [self.instance] if self.parent is None else self.parent.instance
        return find_outdated_approvals(rows or (), timezone.now(), with_declarations=True)


class ApprovalAnswerBody(StrictSerializer):
    """The decision on an approval."""

    answer = serializers.ChoiceField([(answer, answer) for answer in ANSWERS])
    message = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=MAX_MESSAGE_LENGTH,
        help_text="If the call is denied: the reason that the model gets.",
    )


class SessionGrantSerializer(StrictSerializer):
    """An approval of a tool for the whole session."""

    id = serializers.UUIDField()
    session_id = serializers.UUIDField()
    agent_id = serializers.UUIDField()
    server_id = serializers.UUIDField(allow_null=True)
    tool = serializers.CharField(source="own_name")
    name = serializers.CharField(source="label")
    definition_digest = serializers.CharField()
    granted_by = serializers.CharField()
    created_at = serializers.DateTimeField()


class ApprovalView(ResourceView):
    """Base class of the views of one approval."""

    def get_approval(self, approval_id: str) -> Approval:
        """Return the visible approval with this id; raises `NotFound`."""
        approvals = Approval.objects.visible_to(self.principal)
        return self.get_row(Approval, approvals, approval_id=approval_id)


class ApprovalListView(ResourceView):
    """All approvals."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)
    queryset = Approval.objects.none()
    filterset_class = ApprovalFilter
    orderings = ("created_at", "expires_at", "state")

    @describe_operation("list_approvals", answer=CallApprovalSerializer(many=True))
    def get(self, request: object) -> Response:
        """List approvals, newest first.

        `state=waiting` returns pending approvals. A member sees only approvals of their own calls.
        """
        return self.respond_page(
            Approval.objects.visible_to(self.principal), CallApprovalSerializer
        )


class ApprovalDetailView(ApprovalView):
    """One approval."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)

    @describe_operation("get_approval", answer=CallApprovalSerializer)
    def get(self, request: object, approval_id: str) -> Response:
        """Get an approval with the details of its call."""
        return self.respond_row(self.get_approval(approval_id), CallApprovalSerializer)


class AnswerApprovalView(ApprovalView):
    """The decision on an approval."""

    rules = {"POST": Action.APPROVE_CALLS}

    @describe_operation("answer_approval", body=ApprovalAnswerBody, answer=CallApprovalSerializer)
    def post(self, request: object, approval_id: str) -> Response:
        """Approve a call once or for its session, or deny it; the session continues.

        Problems: `already_answered`, `approval_expired`, `own_call` (four-eyes principle).
        """
        approval = self.get_approval(approval_id)
        body = self.read_body(ApprovalAnswerBody)
        resolved_approval = resolve_approval(
            self.principal, approval, body["answer"], body.get("message", "")
        )
        return self.respond_row(resolved_approval, CallApprovalSerializer)


class SessionApprovalListView(SessionView):
    """The tools approved for a whole session."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)
    orderings = ("created_at",)

    @describe_operation("list_session_approvals", answer=SessionGrantSerializer(many=True))
    def get(self, request: object, session_id: str) -> Response:
        """List the tools approved for a whole session."""
        return self.respond_page(self.get_session(session_id).grants.all(), SessionGrantSerializer)


class SessionApprovalDetailView(SessionView):
    """One tool approved for a whole session."""

    rules = {"DELETE": Action.APPROVE_CALLS}

    @describe_operation("revoke_session_approval", status=204)
    def delete(self, request: object, session_id: str, session_approval_id: str) -> Response:
        """Revoke a session approval; effective on the next call."""
        approvals = SessionApproval.objects.filter(session=self.get_session(session_id))
        approval = self.get_row(SessionApproval, approvals, session_approval_id=session_approval_id)
        revoke_session_approval(self.principal, approval)
        return Response(status=204)
