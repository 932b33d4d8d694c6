"""REST of sessions: messages, steps, files and the event stream."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from time import monotonic
from typing import Any
from uuid import UUID

import django_filters
from django.http import HttpResponse, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema_field,
)
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import (
    OUTPUT_SCHEMA_HELP,
    AgentRowFilter,
    AgentView,
    OutputSchemaField,
)
from agents.api.budgets import BudgetUseSerializer
from agents.attachments import MAX_ATTACHMENTS, MAX_TEXT_BYTES, decode_attachments
from agents.budgets.services import list_session_budget_use
from agents.flow_labels.services import list_session_labels
from agents.flow_labels.session_labels import label_reader, label_session_reader
from agents.flow_labels.text_labels import label_text_reader
from agents.images import MAX_IMAGE_BYTES, build_blob_response, get_session_blob
from agents.models import Session, Step
from agents.sessions.events import SessionEvent, build_step_data, watch_session
from agents.sessions.export import MEDIA_TYPES, build_file_response, load_output
from agents.sessions.quarantine import release_quarantined_session
from agents.sessions.services import (
    MAX_MESSAGE_LENGTH,
    cancel_session,
    find_selectable_endpoint,
    resend_message,
    send_message,
    start_session,
)
from agents.sessions.session_import import UnusableSessionFile, import_session, read_session
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ_OR_RUN, ResourceView
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer
from bonobot.core.problems import InvalidInput
from bonobot.core.runtime import get_runtime
from bonobot.core.text.pdf_files import MAX_PDF_BYTES, MAX_PDF_PAGES
from mcp_servers.flow_labels import FlowLabel

MAX_STEPS = 500
SEQ_SCHEMA = {"type": "integer", "minimum": 0, "default": 0}
KEEPALIVE_S = 15.0
# Then the client reconnects with its last id and is authorized again.
MAX_STREAM_S = 600.0
EVENT_STREAM = "text/event-stream"
AFTER_PARAMETER = OpenApiParameter("after", SEQ_SCHEMA, description="Only steps after this `seq`.")
LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID",
    int,
    OpenApiParameter.HEADER,
    description="ID of the last event received; the stream continues after it.",
)
STREAM_RESPONSE = OpenApiResponse(
    OpenApiTypes.STR,
    description=(
        "Events: `message`, `model`, `call`, `notice`, and `end` are steps (`data` is the "
        "step; an event with an `id` is final); `text` adds text to a step that isn't final "
        "(`seq`, `at`: offset in characters, `text`), `thinking` the same to its thinking; "
        "`progress` is the progress of a call "
        "(`seq`, `done`, `total`, `message`); `state` is the status of the session "
        "(`status`); `rest` is the last event, with the result."
    ),
    examples=[
        OpenApiExample(
            "A finished call",
            'id: 3\nevent: call\ndata: {"seq": 3, "kind": "call", "state": "done"}\n\n',
        )
    ],
)
FORMAT_PARAMETER = OpenApiParameter(
    "as", str, enum=list(MEDIA_TYPES), description="Default: `markdown`."
)


class StepImageSerializer(StrictSerializer):
    """An image of a step; download it from `/images/{sha256}`."""

    sha256 = serializers.CharField()
    media_type = serializers.CharField()
    size = serializers.IntegerField(help_text="Size in bytes.")
    name = serializers.CharField(required=False, help_text="File name, if a person attached it.")


class StepFileSerializer(StepImageSerializer):
    """A text or PDF file that a person attached; download it from `/files/{sha256}`."""

    pages = serializers.IntegerField(
        required=False, help_text="About how many pages a PDF file has."
    )


class StepModelSerializer(StrictSerializer):
    """The model endpoint that was used."""

    id = serializers.CharField()
    name = serializers.CharField()
    kind = serializers.CharField()
    model = serializers.CharField()


class CallProgressSerializer(StrictSerializer):
    """The progress of a call, as reported by its server."""

    done = serializers.FloatField()
    total = serializers.FloatField(allow_null=True)
    message = serializers.CharField()


class StepSerializer(StrictSerializer):
    """One step of a session; the optional fields depend on its kind."""

    seq = serializers.IntegerField()
    kind = serializers.ChoiceField(Step.Kind.choices)
    state = serializers.ChoiceField(Step.State.choices)
    turn = serializers.IntegerField()
    index = serializers.IntegerField()
    call_id = serializers.UUIDField(allow_null=True)
    started_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    text = serializers.CharField(required=False)
    thinking = serializers.CharField(
        required=False, help_text="The model's readable thinking before its text."
    )
    by = serializers.CharField(required=False)
    replaces = serializers.IntegerField(
        required=False, help_text="The first of the earlier steps that this message replaces."
    )
    name = serializers.CharField(required=False)
    arguments = serializers.DictField(required=False, allow_null=True)
    server = serializers.CharField(required=False)
    tool = serializers.CharField(required=False)
    duration_ms = serializers.IntegerField(required=False)
    flagged = serializers.DictField(
        child=serializers.IntegerField(),
        required=False,
        help_text=(
            "Number of text passages of a result that look like instructions to a model, by rule."
        ),
    )
    sanitized = serializers.DictField(
        child=serializers.IntegerField(),
        required=False,
        help_text="Number of text passages of a result removed or neutralized, by rule.",
    )
    progress = CallProgressSerializer(required=False, help_text="The progress of a running call.")
    images = StepImageSerializer(many=True, required=False)
    files = StepFileSerializer(many=True, required=False)
    finish = serializers.CharField(required=False)
    endpoint = StepModelSerializer(required=False)
    wait_s = serializers.FloatField(
        required=False, help_text="Seconds before the model is called again."
    )
    usage = serializers.DictField(required=False)
    cost_microusd = serializers.IntegerField(required=False)
    answer = serializers.CharField(required=False)
    output = serializers.DictField(
        required=False, help_text="The answer as JSON, if it has an output schema."
    )
    output_schema = serializers.DictField(required=False)
    code = serializers.CharField(required=False)
    detail = serializers.CharField(required=False)
    remedy = serializers.CharField(required=False)
    field = serializers.CharField(required=False)
    rule = serializers.CharField(required=False)


class SessionFilter(AgentRowFilter):
    """Filters for the list of sessions."""

    status = django_filters.ChoiceFilter(choices=Session.Status.choices)
    since = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")
    until = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="lt")


class AttachmentBody(StrictSerializer):
    """A file attached to a message."""

    name = serializers.CharField(max_length=255)
    content = serializers.CharField(
        trim_whitespace=False,
        help_text=(
            f"Base64 of an image (PNG, JPEG, GIF, WebP; {MAX_IMAGE_BYTES:,} bytes at "
            f"most), of a text in UTF-8 ({MAX_TEXT_BYTES:,} bytes at most), or of a PDF file "
            f"({MAX_PDF_BYTES:,} bytes and {MAX_PDF_PAGES} pages at most) if the agent's model "
            "endpoint has `pdf_input`."
        ),
    )


class MessageBody(StrictSerializer):
    """A message for an agent."""

    message = serializers.CharField(
        max_length=MAX_MESSAGE_LENGTH, trim_whitespace=False, allow_blank=True
    )
    attachments = AttachmentBody(
        many=True,
        required=False,
        help_text=f"At most {MAX_ATTACHMENTS}; the size of the body is limited.",
    )
    output_schema = OutputSchemaField(
        required=False,
        help_text=f"{OUTPUT_SCHEMA_HELP} For this message, instead of the agent's.",
    )


class ResendMessageBody(StrictSerializer):
    """A message to resend or replace."""

    seq = serializers.IntegerField(
        required=False,
        min_value=1,
        help_text="Number of the message's step. Default: the last message.",
    )
    message = serializers.CharField(
        required=False,
        max_length=MAX_MESSAGE_LENGTH,
        trim_whitespace=False,
        allow_blank=True,
        help_text="The new text. Default: the current text.",
    )
    attachments = AttachmentBody(
        many=True, required=False, help_text="Added to the message's current attachments."
    )


class StartSessionBody(MessageBody):
    """A session to start."""

    working_dir = serializers.CharField(
        required=False,
        max_length=1024,
        help_text="An attached folder of the host; only a platform administrator can set it.",
    )
    model_endpoint = serializers.CharField(
        required=False,
        max_length=64,
        help_text=(
            "ID or slug of a model endpoint to use instead of the agent's. Members can choose "
            "those that are `selectable`."
        ),
    )


class SessionSerializer(StrictSerializer):
    """A session of an agent."""

    id = serializers.UUIDField()
    agent_id = serializers.UUIDField()
    agent = serializers.CharField(source="agent.slug")
    title = serializers.CharField()
    status = serializers.ChoiceField(Session.Status.choices)
    model_endpoint = serializers.UUIDField(
        source="model_endpoint_id",
        allow_null=True,
        help_text="ID of the model endpoint chosen for this session; null: the agent's.",
    )
    error_code = serializers.CharField()
    error_detail = serializers.CharField()
    started_by = serializers.CharField()
    parent_id = serializers.UUIDField(
        allow_null=True,
        help_text="The session that started this one; null if a person or a token started it.",
    )
    turns = serializers.IntegerField()
    calls = serializers.IntegerField()
    input_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(
        help_text="The part of the input that was read from the provider's cache."
    )
    cost_microusd = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    quarantined_at = serializers.DateTimeField(
        allow_null=True,
        help_text="When it was quarantined because its worker died repeatedly; null if it wasn't.",
    )


class SessionFlowLabelSerializer(StrictSerializer):
    """A flow label of a session, and the first call that added it."""

    label = serializers.ChoiceField(  # type: ignore[assignment]  # DRF moves it
        [str(FlowLabel.PRIVATE_DATA), str(FlowLabel.UNTRUSTED_CONTENT)]
    )
    call_id = serializers.UUIDField(allow_null=True)
    tool = serializers.CharField()
    at = serializers.DateTimeField(allow_null=True)


class SessionDetailSerializer(SessionSerializer):
    """A session with its steps."""

    flow_labels = serializers.SerializerMethodField(
        help_text=(
            "Flow labels of the session; with both, calls with an external effect require approval."
        )
    )

    budgets = serializers.SerializerMethodField(
        help_text="The agent's budgets for each session, with the usage of this session."
    )
    output = serializers.SerializerMethodField(
        help_text="The last answer as JSON, if it has an output schema; otherwise null."
    )
    steps = serializers.SerializerMethodField(help_text=f"At most {MAX_STEPS} steps after `after`.")
    more_steps = serializers.SerializerMethodField(
        help_text="True if there are more steps after these."
    )

    @extend_schema_field(SessionFlowLabelSerializer(many=True))
    def get_flow_labels(self, session: Session) -> Any:
        """Return the labels that it holds now."""
        return SessionFlowLabelSerializer(list_session_labels(session), many=True).data

    @extend_schema_field(BudgetUseSerializer(many=True))
    def get_budgets(self, session: Session) -> Any:
        """Return the session's own budgets."""
        return BudgetUseSerializer(list_session_budget_use(session), many=True).data

    @extend_schema_field({"type": "object", "nullable": True, "additionalProperties": True})
    def get_output(self, session: Session) -> Any:
        """Return the last answer's value."""
        return load_output(session)

    @extend_schema_field(StepSerializer(many=True))
    def get_steps(self, session: Session) -> list[dict[str, Any]]:
        """Return what the session did."""
        return [build_step_data(step) for step in self.context["steps"][:MAX_STEPS]]

    def get_more_steps(self, session: Session) -> bool:
        """Tell whether there are more steps than these."""
        return len(self.context["steps"]) > MAX_STEPS


class CancelSessionSerializer(StrictSerializer):
    """The result of a cancellation."""

    cancelled = serializers.BooleanField(help_text="False if nothing was running.")


class SessionView(ResourceView):
    """Base class of the views of one session."""

    def get_session(self, session_id: str) -> Session:
        """Return the visible session with this id; raises `NotFound`."""
        visible_sessions = Session.objects.visible_to(self.principal).select_related("agent")
        visible_session = self.get_row(Session, visible_sessions, session_id=session_id)
        if self.request.method == "GET":
            label_reader(self.principal, visible_session)
            label_text_reader(self.principal, visible_session)
        return visible_session

    def show_session(self, session: Session, *, status: int = 200) -> Response:
        return self.respond_row(self.get_session(str(session.pk)), SessionSerializer, status=status)


class SessionListView(SessionView):
    """All sessions."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)
    queryset = Session.objects.none()
    filterset_class = SessionFilter
    orderings = ("created_at", "updated_at", "status", "turns", "calls", "cost_microusd")

    @describe_operation("list_sessions", answer=SessionSerializer(many=True))
    def get(self, request: object) -> Response:
        """List sessions, newest first; a member sees their own sessions."""
        rows = Session.objects.visible_to(self.principal).select_related("agent")
        return self.respond_page(rows, SessionSerializer)


class AgentSessionListView(AgentView):
    """The sessions of an agent."""

    rules = {"GET": READ_OR_RUN, "POST": Action.RUN_AGENTS}
    agent_token_methods = ("GET", "POST")
    queryset = Session.objects.none()
    filterset_class = SessionFilter
    orderings = ("created_at", "updated_at", "status", "turns", "calls", "cost_microusd")

    @describe_operation("list_agent_sessions", answer=SessionSerializer(many=True))
    def get(self, request: object, agent_id: str) -> Response:
        """List an agent's sessions, newest first; a member sees their own sessions."""
        agent = self.get_agent(agent_id)
        rows = Session.objects.visible_to(self.principal).filter(agent=agent)
        return self.respond_page(rows.select_related("agent"), SessionSerializer)

    @describe_operation(
        "start_session", body=StartSessionBody, answer=SessionSerializer, status=201
    )
    def post(self, request: object, agent_id: str) -> Response:
        """Start a session with a first message; it runs in a worker."""
        agent = self.get_agent(agent_id)
        body = self.read_body(StartSessionBody)
        folder = body.get("working_dir", "")
        files = decode_attachments(body.get("attachments", ()))
        model_endpoint = find_selectable_endpoint(
            self.principal, agent, body.get("model_endpoint", "")
        )
        session = start_session(
            self.principal,
            agent,
            body["message"],
            working_dir=folder,
            attachments=files,
            model_endpoint=model_endpoint,
            output_schema=body.get("output_schema"),
        )
        return self.respond_row(session, SessionSerializer, status=201)


class SessionDetailView(SessionView):
    """One session."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)

    @describe_operation("get_session", answer=SessionDetailSerializer, parameters=[AFTER_PARAMETER])
    def get(self, request: object, session_id: str) -> Response:
        """Get a session with its steps: messages, model turns, calls, notices."""
        session = self.get_session(session_id)
        after = parse_seq(self.request.query_params.get("after", "0"), "after")
        steps = list(session.steps.filter(seq__gt=after).order_by("seq")[: MAX_STEPS + 1])
        return self.respond_row(session, SessionDetailSerializer, steps=steps)


class CancelSessionView(SessionView):
    """Cancellation of a session."""

    rules = {"POST": Action.RUN_AGENTS}
    agent_token_methods = ("POST",)

    @describe_operation("cancel_session", answer=CancelSessionSerializer)
    def post(self, request: object, session_id: str) -> Response:
        """Cancel a session; a later message continues it."""
        return Response({"cancelled": cancel_session(self.principal, self.get_session(session_id))})


class ReleaseSessionView(SessionView):
    """Release of a quarantined session."""

    rules = {"POST": Action.MANAGE_AGENTS}

    @describe_operation("release_session", answer=SessionSerializer)
    def post(self, request: object, session_id: str) -> Response:
        """Release a session that was quarantined because its worker died repeatedly."""
        session = self.get_session(session_id)
        release_quarantined_session(self.principal, session)
        return self.show_session(session)


class SessionImageView(SessionView):
    """An image of a session."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)
    http_method_names = ["get"]

    @describe_operation("get_session_image", answer={(200, "image/*"): OpenApiTypes.BINARY})
    def get(self, request: object, session_id: str, sha256: str) -> HttpResponse:
        """Get an image of a step (`images`): PNG, JPEG, GIF, or WebP."""
        return build_blob_response(get_session_blob(self.get_session(session_id), sha256))


def parse_seq(text: str, field: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return int(text)
    raise InvalidInput(
        f"`{field}` is {text[:20]!r}.", field=field, remedy="Send a step number, or omit the field."
    )


class SessionEventsView(SessionView):
    """The event stream of a session."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)
    http_method_names = ["get"]

    @describe_operation(
        "follow_session",
        answer={(200, EVENT_STREAM): STREAM_RESPONSE},
        parameters=[LAST_EVENT_ID, AFTER_PARAMETER],
    )
    def get(self, request: object, session_id: str) -> StreamingHttpResponse:
        """Stream the events of a session until it ends or waits (server-sent events).

        Steps that aren't final have no ID and are sent each time they change: replace the earlier
        version with the same `seq`. If the stream breaks, or ends after ten minutes without `rest`,
        reconnect with the last ID in `Last-Event-ID`; steps that aren't final are sent again with
        their current content. Use `after` for the first connection if the client can't set headers,
        such as a browser.
        """
        session = self.get_session(session_id)
        if last := self.request.headers.get("Last-Event-ID"):
            after = parse_seq(last, "Last-Event-ID")
        else:
            after = parse_seq(self.request.query_params.get("after", "0"), "after")
        events = stream_events(session.pk, after, self.principal)
        response = StreamingHttpResponse(events, content_type=EVENT_STREAM)
        response["Cache-Control"] = "no-store"
        response["X-Accel-Buffering"] = "no"
        return response


async def stream_events(
    session_id: UUID, after_seq: int, principal: Principal | None = None
) -> AsyncIterator[bytes]:
    """Yield the session's events as server-sent events, with comments as keepalive.

    A token that reads them gets the session's flow labels.
    """
    started_at = last_sent_at = monotonic()
    async with aclosing(watch_session(session_id, after_seq)) as event_batches:
        async for events in event_batches:
            if events:
                if principal is not None and principal.kind == "token":
                    await get_runtime().run_orm(label_session_reader, principal, session_id)
                yield b"".join(map(encode_event, events))
                last_sent_at = monotonic()
            elif monotonic() - last_sent_at >= KEEPALIVE_S:
                yield b": still here\n\n"
                last_sent_at = monotonic()
            if monotonic() - started_at >= MAX_STREAM_S:
                return


def encode_event(event: SessionEvent) -> bytes:
    """Encode one event for the stream; the JSON has no line breaks."""
    id_line = f"id: {event.id}\n" if event.id is not None else ""
    return f"{id_line}event: {event.kind}\ndata: {json.dumps(event.data)}\n\n".encode()


class SendMessageView(SessionView):
    """Messages to a session."""

    rules = {"POST": Action.RUN_AGENTS}
    agent_token_methods = ("POST",)

    @describe_operation("send_message", body=MessageBody, answer=SessionSerializer, status=202)
    def post(self, request: object, session_id: str) -> Response:
        """Send a message; a running session handles it in its next turn."""
        session = self.get_session(session_id)
        body = self.read_body(MessageBody)
        files = decode_attachments(body.get("attachments", ()))
        schema = body.get("output_schema")
        send_message(self.principal, session, body["message"], files, output_schema=schema)
        return self.show_session(session, status=202)


class ResendMessageView(SessionView):
    """Resend or replace a message."""

    rules = {"POST": Action.RUN_AGENTS}
    agent_token_methods = ("POST",)

    @describe_operation(
        "retry_message", body=ResendMessageBody, answer=SessionSerializer, status=202
    )
    def post(self, request: object, session_id: str) -> Response:
        """Resend or replace a message in a session that isn't running.

        The new message replaces the earlier one and all steps after it. Those steps are kept, and
        the new message names the first of them (`replaces`), but the agent no longer sees them.
        """
        session = self.get_session(session_id)
        body = self.read_body(ResendMessageBody)
        files = decode_attachments(body.get("attachments", ()))
        resend_message(self.principal, session, body.get("seq"), body.get("message"), files)
        return self.show_session(session, status=202)


class SessionExportView(SessionView):
    """Export of a session."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)
    http_method_names = ["get"]

    @describe_operation(
        "export_session",
        answer={
            (200, "text/markdown"): OpenApiTypes.STR,
            (200, "application/json"): OpenApiTypes.OBJECT,
        },
        parameters=[FORMAT_PARAMETER],
    )
    def get(self, request: object, session_id: str) -> HttpResponse:
        """Export a session, as Markdown or as JSON with all steps."""
        session = self.get_session(session_id)
        return build_file_response(session, self.request.query_params.get("as", "markdown"))


class SessionFileView(SessionView):
    """A text file attached to a message."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)
    http_method_names = ["get"]

    @describe_operation("get_session_file", answer={(200, "text/plain"): OpenApiTypes.STR})
    def get(self, request: object, session_id: str, sha256: str) -> HttpResponse:
        """Get a text or PDF file of a message (`files`)."""
        return build_blob_response(
            get_session_blob(self.get_session(session_id), sha256, payload_key="files")
        )


@extend_schema_field({"type": "object", "additionalProperties": True})
class SessionFileField(serializers.JSONField):
    """The JSON export of a session."""


class ImportSessionBody(StrictSerializer):
    """A session to import."""

    session = SessionFileField(
        help_text="The JSON export of a session (`GET /api/sessions/{id}/export?as=json`)."
    )


class ImportSessionView(AgentView):
    """Import of an exported session."""

    rules = {"POST": Action.RUN_AGENTS}
    agent_token_methods = ("POST",)
    http_method_names = ["post"]

    @describe_operation(
        "import_session", body=ImportSessionBody, answer=SessionSerializer, status=201
    )
    def post(self, request: object, agent_id: str) -> Response:
        """Import an exported session as a finished one; nothing runs until its next message."""
        agent = self.get_agent(agent_id)
        try:
            file = read_session(self.read_body(ImportSessionBody)["session"])
        except UnusableSessionFile as problem:
            problem.field = f"session.{problem.field}".rstrip(".")
            raise
        return self.respond_row(
            import_session(self.principal, agent, file), SessionSerializer, status=201
        )
