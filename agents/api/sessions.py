"""Sessions: start, read, follow, answer, cancel."""

from typing import Any

import django_filters
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    extend_schema_field,
    extend_schema_serializer,
)
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentResource
from agents.api.budgets import BudgetUseShape
from agents.api.messages import QUESTION, MessageBody
from agents.api.steps import StepShape
from agents.attachments import from_base64
from agents.budgets import session_budgets_in_use
from agents.holding import held_by_session
from agents.models import Session
from agents.models.agents import named
from agents.pictures import as_answer, kept_of
from agents.session_labels import label_reader
from agents.sessions.events import shown
from agents.sessions.requests import cancel, start
from bonobot.lib.problems import Invalid
from bonobot.tenancy.api.filters import Filters
from bonobot.tenancy.api.resources import READ_OR_RUN, Resource, named_in_path
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.roles import Action
from mcp_servers.labels import Label

STEPS = 500


class SessionFilter(Filters):
    """What sessions are looked for by."""

    status = django_filters.ChoiceFilter(choices=Session.Status.choices)
    agent = django_filters.CharFilter(method="by_agent", label="Id or slug of the agent")
    since = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")
    until = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="lt")

    def by_agent(self, rows: Any, name: str, value: str) -> Any:
        """Keep those of one agent."""
        return rows.filter(**{f"agent__{field}": found for field, found in named(value).items()})


@extend_schema_serializer(examples=[OpenApiExample("A first message", {"message": QUESTION})])
class StartBody(MessageBody):
    """A session as it is started."""

    working_dir = serializers.CharField(
        required=False,
        max_length=1024,
        help_text="A folder of the host; only a platform administrator may attach one.",
    )


class SessionShape(Shape):
    """A conversation with an agent."""

    id = serializers.UUIDField()
    agent_id = serializers.UUIDField()
    agent = serializers.CharField(source="agent.slug")
    title = serializers.CharField()
    status = serializers.ChoiceField(Session.Status.choices)
    error_code = serializers.CharField()
    error_detail = serializers.CharField()
    started_by = serializers.CharField()
    parent_id = serializers.UUIDField(
        allow_null=True, help_text="The session that began this one; null for what people start."
    )
    turns = serializers.IntegerField()
    calls = serializers.IntegerField()
    input_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    cost_microusd = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)


class HeldLabelShape(Shape):
    """A label that a session holds, and the first call that brought it."""

    label = serializers.ChoiceField(  # type: ignore[assignment]  # DRF moves it
        [str(Label.PRIVATE_DATA), str(Label.UNTRUSTED_CONTENT)]
    )
    call_id = serializers.UUIDField(allow_null=True)
    tool = serializers.CharField()
    at = serializers.DateTimeField(allow_null=True)


class SessionDetailShape(SessionShape):
    """A session with its steps."""

    held = serializers.SerializerMethodField(
        help_text="What it has seen: with both labels, what sends out needs a person's yes."
    )

    budgets = serializers.SerializerMethodField(
        help_text="What its agent gives each session, with what this one has spent of it."
    )
    steps = serializers.SerializerMethodField(help_text=f"At most {STEPS} behind `after`.")
    more_steps = serializers.SerializerMethodField(help_text="Whether there are more behind these.")

    @extend_schema_field(HeldLabelShape(many=True))
    def get_held(self, session: Session) -> Any:
        """Return the labels that it holds now."""
        return HeldLabelShape(held_by_session(session), many=True).data

    @extend_schema_field(BudgetUseShape(many=True))
    def get_budgets(self, session: Session) -> Any:
        """Return the session's own budgets."""
        return BudgetUseShape(session_budgets_in_use(session), many=True).data

    @extend_schema_field(StepShape(many=True))
    def get_steps(self, session: Session) -> list[dict[str, Any]]:
        """Return what the session did."""
        return [shown(step) for step in self.context["steps"][:STEPS]]

    def get_more_steps(self, session: Session) -> bool:
        """Tell whether there are more steps than these."""
        return len(self.context["steps"]) > STEPS


class CancelShape(Shape):
    """What a wish to cancel did."""

    cancelled = serializers.BooleanField(help_text="False where nothing was running.")


class SessionResource(Resource):
    """A resource below one session."""

    def session(self, session_id: str) -> Session:
        """Return the session, if it may be read; raises `NotFound`."""
        visible = Session.objects.visible_to(self.principal).select_related("agent")
        with named_in_path("session_id"):
            found: Session = visible.get_or_404(self.organization_id, pk=session_id)
        if self.request.method == "GET":
            label_reader(self.principal, found)
        return found

    def answer(self, session: Session, *, status: int = 200) -> Response:
        """Show the session as it is now."""
        return self.shown(self.session(str(session.pk)), SessionShape, status=status)


class Sessions(SessionResource):
    """All sessions."""

    rules = {"GET": READ_OR_RUN}
    narrowed = ("GET",)
    queryset = Session.objects.none()
    filterset_class = SessionFilter
    orderings = ("created_at", "updated_at", "status", "turns", "calls", "cost_microusd")

    @operation("list_sessions", answer=SessionShape(many=True))
    def get(self, request: object) -> Response:
        """List sessions, the latest first; a member sees their own."""
        rows = Session.objects.visible_to(self.principal).select_related("agent")
        return self.listed(rows, SessionShape)


class AgentSessions(AgentResource):
    """The sessions of an agent."""

    rules = {"GET": READ_OR_RUN, "POST": Action.RUN_AGENTS}
    narrowed = ("GET", "POST")
    queryset = Session.objects.none()
    filterset_class = SessionFilter
    orderings = ("created_at", "updated_at", "status", "turns", "calls", "cost_microusd")

    @operation("list_agent_sessions", answer=SessionShape(many=True))
    def get(self, request: object, agent_id: str) -> Response:
        """List the sessions of an agent, the latest first; a member sees their own."""
        agent = self.agent(agent_id)
        rows = Session.objects.visible_to(self.principal).filter(agent=agent)
        return self.listed(rows.select_related("agent"), SessionShape)

    @operation("start_session", body=StartBody, answer=SessionShape, status=201)
    def post(self, request: object, agent_id: str) -> Response:
        """Start a session with a first message; a worker takes it from here."""
        agent = self.agent(agent_id)
        body = self.read(StartBody)
        folder = body.get("working_dir", "")
        files = from_base64(body.get("attachments", ()))
        session = start(
            self.principal, agent, body["message"], working_dir=folder, attachments=files
        )
        return self.shown(session, SessionShape, status=201)


SEQ = {"type": "integer", "minimum": 0, "default": 0}
AFTER = OpenApiParameter("after", SEQ, description="Only steps behind this `seq`.")


class OneSession(SessionResource):
    """One session."""

    rules = {"GET": READ_OR_RUN}
    narrowed = ("GET",)

    @operation("get_session", answer=SessionDetailShape, parameters=[AFTER])
    def get(self, request: object, session_id: str) -> Response:
        """Show a session with its steps: messages, model turns, calls, notices."""
        session = self.session(session_id)
        after = seq_in(self.request.query_params.get("after", "0"), "after")
        steps = list(session.steps.filter(seq__gt=after).order_by("seq")[: STEPS + 1])
        return self.shown(session, SessionDetailShape, steps=steps)


class CancelSession(SessionResource):
    """The wish to cancel a session."""

    rules = {"POST": Action.RUN_AGENTS}
    narrowed = ("POST",)

    @operation("cancel_session", answer=CancelShape)
    def post(self, request: object, session_id: str) -> Response:
        """Cancel what a session does; a message sent later begins anew."""
        return Response({"cancelled": cancel(self.principal, self.session(session_id))})


class SessionImage(SessionResource):
    """An image of a session."""

    rules = {"GET": READ_OR_RUN}
    narrowed = ("GET",)
    http_method_names = ["get"]

    @operation("get_session_image", answer={(200, "image/*"): OpenApiTypes.BINARY})
    def get(self, request: object, session_id: str, sha256: str) -> HttpResponse:
        """Show an image of a step (`images`): PNG, JPEG, GIF or WebP."""
        return as_answer(kept_of(self.session(session_id), sha256))


def seq_in(text: str, field: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return int(text)
    raise Invalid(
        f"`{field}` is {text[:20]!r}.", field=field, remedy="Send the number of a step, or nothing."
    )
