"""REST of elicitation requests (/questions)."""

import django_filters
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentRowFilter
from agents.elicitations.services import ANSWERS, answer_request
from agents.models import ElicitationRequest
from agents.models.page_urls import build_page_url
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ_OR_RUN, ResourceView
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer


class ElicitationRequestFilter(AgentRowFilter):
    """Filters for the list of elicitation requests."""

    state = django_filters.ChoiceFilter(choices=ElicitationRequest.State.choices)
    session = django_filters.UUIDFilter(field_name="session_id")
    server = django_filters.CharFilter(field_name="server_name", label="Name of the server")


class ElicitationRequestSerializer(StrictSerializer):
    """An elicitation request of a server (untrusted text), and the answer."""

    id = serializers.UUIDField()
    state = serializers.ChoiceField(ElicitationRequest.State.choices)
    agent_id = serializers.UUIDField()
    session_id = serializers.UUIDField()
    call_id = serializers.UUIDField(allow_null=True)
    server_id = serializers.UUIDField()
    server = serializers.CharField(source="server_name")
    tool = serializers.CharField(
        source="own_name", help_text="Empty if the request was sent during a call of another kind."
    )
    mode = serializers.ChoiceField(ElicitationRequest.Mode.choices)
    message = serializers.CharField()
    requested_schema = serializers.DictField(
        source="schema", help_text="For a form: JSON Schema of a flat object."
    )
    url_to_visit = serializers.CharField(
        source="url", help_text="For a web page: the full URL. Bonobot doesn't fetch it."
    )
    flags = serializers.ListField(
        child=serializers.CharField(),
        help_text="`secret:FIELD`, `not_encrypted`, `unusual_host`, `sign_in_in_address`.",
    )
    requested_by = serializers.CharField(help_text="Who is asked to answer.")
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(
        help_text="After this time, the server receives `cancel`."
    )
    answered_at = serializers.DateTimeField(allow_null=True)
    answered_by = serializers.CharField()
    completed_at = serializers.DateTimeField(
        allow_null=True,
        help_text="When the server reported that the person finished on the web page.",
    )
    url = serializers.SerializerMethodField(help_text="URL of the page where a person answers.")

    def get_url(self, elicitation_request: ElicitationRequest) -> str:
        return build_page_url(elicitation_request)


class ElicitationAnswerBody(StrictSerializer):
    """The answer to an elicitation request."""

    action = serializers.ChoiceField([(answer, answer) for answer in ANSWERS])
    content = serializers.DictField(
        required=False, help_text="With `accept` of a form: values by field name."
    )


class ElicitationRequestView(ResourceView):
    """Base class of the views of one elicitation request."""

    def get_elicitation_request(self, request_id: str) -> ElicitationRequest:
        """Return the visible request with this id; raises `NotFound`."""
        rows = ElicitationRequest.objects.visible_to(self.principal)
        return self.get_row(ElicitationRequest, rows, request_id=request_id)


class ElicitationRequestListView(ResourceView):
    """All elicitation requests."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)
    queryset = ElicitationRequest.objects.none()
    filterset_class = ElicitationRequestFilter
    orderings = ("created_at", "expires_at", "state")

    @describe_operation("list_elicitation_requests", answer=ElicitationRequestSerializer(many=True))
    def get(self, request: object) -> Response:
        """List elicitation requests, newest first.

        `state=waiting` returns pending requests. A member sees only requests of their own sessions.
        """
        return self.respond_page(
            ElicitationRequest.objects.visible_to(self.principal), ElicitationRequestSerializer
        )


class ElicitationRequestDetailView(ElicitationRequestView):
    """One elicitation request."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)

    @describe_operation("get_elicitation_request", answer=ElicitationRequestSerializer)
    def get(self, request: object, request_id: str) -> Response:
        """Get an elicitation request with its form or its web page."""
        return self.respond_row(
            self.get_elicitation_request(request_id), ElicitationRequestSerializer
        )


class AnswerElicitationView(ElicitationRequestView):
    """The answer to an elicitation request."""

    rules = {"POST": Action.RUN_AGENTS}

    @describe_operation(
        "answer_elicitation_request",
        body=ElicitationAnswerBody,
        answer=ElicitationRequestSerializer,
    )
    def post(self, request: object, request_id: str) -> Response:
        """Answer an elicitation request; the session continues.

        Only the person who started the session can answer; if no person started it, anyone who can
        approve calls. Problems: `already_answered`, `elicitation_request_expired`, `not_owner`,
        `bad_answer`, `secret_in_answer`.
        """
        elicitation_request = self.get_elicitation_request(request_id)
        body = self.read_body(ElicitationAnswerBody)
        answered_request = answer_request(
            self.principal, elicitation_request, body["action"], body.get("content")
        )
        return self.respond_row(answered_request, ElicitationRequestSerializer)
