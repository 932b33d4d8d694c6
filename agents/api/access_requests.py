"""REST of access requests: members ask for servers, tools and agents."""

import django_filters
from rest_framework import serializers
from rest_framework.response import Response

from agents.access_requests import (
    ANSWER_PERMISSIONS,
    ANSWERS,
    AccessRequestSpec,
    answer_access_request,
    cancel_access_request,
    create_access_request,
)
from agents.models import AccessRequest, Agent
from agents.models.access_requests import MAX_REASON_LENGTH, MAX_TARGET_LENGTH
from agents.models.page_urls import build_page_url
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ_OR_RUN, ResourceView, set_not_found_field
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictFilterSet
from bonobot.core.api.serializers import StrictSerializer


class AccessRequestFilter(StrictFilterSet):
    """Filters for the list of access requests."""

    state = django_filters.ChoiceFilter(choices=AccessRequest.State.choices)
    kind = django_filters.ChoiceFilter(choices=AccessRequest.Kind.choices)


class RequestedAccessSerializer(StrictSerializer):
    """A request for a server, a tool, or an agent, and the answer."""

    id = serializers.UUIDField()
    state = serializers.ChoiceField(AccessRequest.State.choices)
    kind = serializers.ChoiceField(AccessRequest.Kind.choices)
    target = serializers.CharField(help_text="The name of what is requested.")
    agent_id = serializers.UUIDField(
        allow_null=True, help_text="The agent that gets the server or tool."
    )
    reason = serializers.CharField()
    requested_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    answered_at = serializers.DateTimeField(allow_null=True)
    answered_by = serializers.CharField()
    message = serializers.CharField(help_text="The approver's message to the requester.")
    url = serializers.SerializerMethodField(help_text="URL of the page where a person answers.")

    def get_url(self, access_request: AccessRequest) -> str:
        return build_page_url(access_request)


class AccessRequestBody(StrictSerializer):
    """What is requested and why."""

    kind = serializers.ChoiceField(AccessRequest.Kind.choices)
    target = serializers.CharField(
        max_length=MAX_TARGET_LENGTH, help_text="The name of a server or preset, tool, or agent."
    )
    agent = serializers.CharField(
        required=False,
        allow_blank=True,
        help_text="ID or slug of the agent that gets the server or tool.",
    )
    reason = serializers.CharField(max_length=MAX_REASON_LENGTH)


class AccessRequestAnswerBody(StrictSerializer):
    """The answer to an access request."""

    answer = serializers.ChoiceField([(answer, answer) for answer in ANSWERS])
    message = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=MAX_REASON_LENGTH,
        help_text="A message to the requester. Required for a denial.",
    )


class AccessRequestView(ResourceView):
    """Base class of the views of one access request."""

    def get_access_request(self, access_request_id: str) -> AccessRequest:
        """Return the visible request with this id; raises `NotFound`."""
        rows = AccessRequest.objects.visible_to(self.principal)
        return self.get_row(AccessRequest, rows, access_request_id=access_request_id)


class AccessRequestListView(ResourceView):
    """All access requests."""

    rules = {"GET": READ_OR_RUN, "POST": Action.RUN_AGENTS}
    agent_token_methods = ("GET", "POST")
    queryset = AccessRequest.objects.none()
    filterset_class = AccessRequestFilter
    orderings = ("created_at", "expires_at", "state")

    @describe_operation("list_access_requests", answer=RequestedAccessSerializer(many=True))
    def get(self, request: object) -> Response:
        """List access requests, newest first; a member sees only their own."""
        return self.respond_page(
            AccessRequest.objects.visible_to(self.principal), RequestedAccessSerializer
        )

    @describe_operation(
        "create_access_request",
        body=AccessRequestBody,
        answer=RequestedAccessSerializer,
        status=201,
    )
    def post(self, request: object) -> Response:
        """Request a server or a tool for an agent, or an agent.

        The name is checked when the request is approved. Problems: `already_requested`,
        `too_many_access_requests`.
        """
        body = self.read_body(AccessRequestBody)
        agent_name = body.pop("agent", "")
        with set_not_found_field("agent"):
            agent = Agent.objects.get_by_name(self.principal, agent_name) if agent_name else None
        access_request = create_access_request(
            self.principal, AccessRequestSpec(agent=agent, **body)
        )
        return self.respond_row(access_request, RequestedAccessSerializer, status=201)


class AccessRequestDetailView(AccessRequestView):
    """One access request."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)

    @describe_operation("get_access_request", answer=RequestedAccessSerializer)
    def get(self, request: object, access_request_id: str) -> Response:
        """Get an access request with its answer."""
        return self.respond_row(
            self.get_access_request(access_request_id), RequestedAccessSerializer
        )


class AnswerAccessRequestView(AccessRequestView):
    """The answer to an access request."""

    rules = {"POST": ANSWER_PERMISSIONS}

    @describe_operation(
        "answer_access_request", body=AccessRequestAnswerBody, answer=RequestedAccessSerializer
    )
    def post(self, request: object, access_request_id: str) -> Response:
        """Approve a request and set up what it asks for, or deny it with a message.

        Approving your own request requires the permission `manage_agents`. Problems:
        `already_answered`, `access_request_expired`, `unknown_target`, `ambiguous_target`, and
        those of the setup.
        """
        access_request = self.get_access_request(access_request_id)
        body = self.read_body(AccessRequestAnswerBody)
        answered = answer_access_request(
            self.principal, access_request, body["answer"], body.get("message", "")
        )
        return self.respond_row(answered, RequestedAccessSerializer)


class CancelAccessRequestView(AccessRequestView):
    """The cancellation of an access request."""

    rules = {"POST": READ_OR_RUN}
    agent_token_methods = ("POST",)

    @describe_operation("cancel_access_request", answer=RequestedAccessSerializer)
    def post(self, request: object, access_request_id: str) -> Response:
        """Cancel your own pending request.

        Problems: `already_answered`, `access_request_expired`.
        """
        access_request = self.get_access_request(access_request_id)
        return self.respond_row(
            cancel_access_request(self.principal, access_request), RequestedAccessSerializer
        )
