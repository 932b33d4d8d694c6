"""REST of elicitation requests (/questions)."""

from typing import Any

import django_filters
from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents.elicitations.services import ANSWERS, answer_request, build_page_url
from agents.models import ElicitationRequest
from agents.models.agents import build_agent_lookup
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ_OR_RUN, ResourceView, set_not_found_field
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictFilterSet
from bonobot.core.api.serializers import StrictSerializer


class ElicitationRequestFilter(StrictFilterSet):
    """What questions are looked for by."""

    state = django_filters.ChoiceFilter(choices=ElicitationRequest.State.choices)
    agent = django_filters.CharFilter(method="filter_by_agent", label="Id or slug of the agent")
    session = django_filters.UUIDFilter(field_name="session_id")
    server = django_filters.CharFilter(field_name="server_name", label="Name of the server")

    def filter_by_agent(self, rows: Any, name: str, value: str) -> Any:
        """Return the requests of one agent."""
        return rows.filter(
            **{f"agent__{field}": lookup for field, lookup in build_agent_lookup(value).items()}
        )


class ElicitationRequestSerializer(StrictSerializer):
    """What a server asks (its own text: don't trust it), and what was answered."""

    id = serializers.UUIDField()
    state = serializers.ChoiceField(ElicitationRequest.State.choices)
    agent_id = serializers.UUIDField()
    session_id = serializers.UUIDField()
    call_id = serializers.UUIDField(allow_null=True)
    server_id = serializers.UUIDField()
    server = serializers.CharField(source="server_name")
    tool = serializers.CharField(source="own_name", help_text="Blank: during one of its calls.")
    mode = serializers.ChoiceField(ElicitationRequest.Mode.choices)
    message = serializers.CharField()
    requested_schema = serializers.DictField(
        source="schema", help_text="Of a form: JSON Schema of a flat object."
    )
    url_to_visit = serializers.CharField(
        source="url", help_text="Of a web page: the whole address. It was not fetched."
    )
    flags = serializers.ListField(
        child=serializers.CharField(),
        help_text="`secret:FIELD`, `not_encrypted`, `unusual_host`, `sign_in_in_address`.",
    )
    requested_by = serializers.CharField(help_text="Who is asked.")
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(help_text="Then the server is told `cancel`.")
    answered_at = serializers.DateTimeField(allow_null=True)
    answered_by = serializers.CharField()
    completed_at = serializers.DateTimeField(
        allow_null=True, help_text="When the server said that it is done on the web page."
    )
    url = serializers.SerializerMethodField(help_text="Where a person answers it.")

    def get_url(self, elicitation_request: ElicitationRequest) -> str:
        """Return the address of the question's page."""
        return build_page_url(elicitation_request)


@extend_schema_serializer(
    examples=[
        OpenApiExample("A value", {"action": "accept", "content": {"name": "Ada"}}),
        OpenApiExample("A no", {"action": "decline"}),
    ]
)
class ElicitationAnswerBody(StrictSerializer):
    """An answer."""

    action = serializers.ChoiceField([(one, one) for one in ANSWERS])
    content = serializers.DictField(
        required=False, help_text="With `accept` of a form: values by the names of its fields."
    )


class ElicitationRequestView(ResourceView):
    """What has a question in its address."""

    def get_elicitation_request(self, question_id: str) -> ElicitationRequest:
        """Return the visible request with this id; raises `NotFound`."""
        visible: Any = ElicitationRequest.objects.visible_to(self.principal)
        with set_not_found_field("question_id"):
            elicitation_request: ElicitationRequest = visible.get_or_404(
                self.organization_id, pk=question_id
            )
        return elicitation_request


class ElicitationRequestListView(ResourceView):
    """All questions."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)
    queryset = ElicitationRequest.objects.none()
    filterset_class = ElicitationRequestFilter
    orderings = ("created_at", "expires_at", "state")

    @describe_operation("list_questions", answer=ElicitationRequestSerializer(many=True))
    def get(self, request: object) -> Response:
        """List what servers ask people, or asked, the latest first.

        `state=waiting` is the inbox. A member sees those of their own sessions.
        """
        return self.respond_page(
            ElicitationRequest.objects.visible_to(self.principal), ElicitationRequestSerializer
        )


class ElicitationRequestDetailView(ElicitationRequestView):
    """One question."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)

    @describe_operation("get_question", answer=ElicitationRequestSerializer)
    def get(self, request: object, question_id: str) -> Response:
        """Show a question with the form that it asks for, or the page to visit."""
        return self.respond_row(
            self.get_elicitation_request(question_id), ElicitationRequestSerializer
        )


class AnswerElicitationView(ElicitationRequestView):
    """The answer to a question."""

    rules = {"POST": Action.RUN_AGENTS}

    @describe_operation(
        "answer_question", body=ElicitationAnswerBody, answer=ElicitationRequestSerializer
    )
    def post(self, request: object, question_id: str) -> Response:
        """Answer a server's question; the session goes on by itself.

        Only who started the session may; where no person did, whoever approves calls. Problems:
        `already_answered`, `question_expired`, `not_yours`, `bad_answer`, `secret_in_answer`.
        """
        elicitation_request = self.get_elicitation_request(question_id)
        body = self.read_body(ElicitationAnswerBody)
        answered = answer_request(
            self.principal, elicitation_request, body["action"], body.get("content")
        )
        return self.respond_row(answered, ElicitationRequestSerializer)
