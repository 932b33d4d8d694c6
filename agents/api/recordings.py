"""Recordings of sessions, and their replays with the agent as it would be."""

from typing import Any

import django_filters
from drf_spectacular.utils import OpenApiExample, extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.policies import PolicyShape, text_in
from agents.evaluation.conversations import Conversation
from agents.evaluation.differences import summed_up
from agents.evaluation.recordings import record, remove
from agents.evaluation.replays import LONGEST_INSTRUCTIONS, Change, replay
from agents.models import Recording, Replay, Session
from bonobot.lib.problems import NotFound
from bonobot.tenancy.api.filters import Filters, FlagFilter
from bonobot.tenancy.api.resources import READ, Resource, named_in_path
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.roles import Action
from mcp_servers.api.configurations import JSON_OBJECT


@extend_schema_field({**JSON_OBJECT, "description": "Messages, turns, and calls with results."})
class ConversationField(serializers.DictField):
    """A conversation."""


class RecordingFilter(Filters):
    """What recordings are looked for by."""

    agent = django_filters.CharFilter(field_name="agent__slug", label="Slug of the agent")


class ReplayFilter(Filters):
    """What replays are looked for by."""

    status = django_filters.ChoiceFilter(choices=Replay.Status.choices)
    differs = FlagFilter()


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "A session", {"session_id": "0198c0de-7f3a-7c11-9d2b-6a4f0c8e1b57"}, request_only=True
        )
    ]
)
class RecordBody(Shape):
    """The session to record."""

    session_id = serializers.UUIDField()


class RecordingShape(Shape):
    """A recorded session."""

    id = serializers.UUIDField()
    agent_id = serializers.UUIDField()
    agent = serializers.CharField(source="agent.slug")
    session_id = serializers.UUIDField(help_text="It may be gone.")
    title = serializers.CharField()
    turns = serializers.IntegerField()
    calls = serializers.IntegerField()
    tokens = serializers.IntegerField()
    cost_microusd = serializers.IntegerField()
    size = serializers.IntegerField(help_text="In bytes.")
    made_by = serializers.CharField()
    created_at = serializers.DateTimeField()


class OneRecordingShape(RecordingShape):
    """A recorded session with all that was said and done."""

    conversation = ConversationField()


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "Another prompt under a stricter policy",
            {
                "instructions": "Answer in one sentence.",
                "policy": {"mode": "allowlist", "allow": ["mcp_time_*"]},
            },
            request_only=True,
        )
    ]
)
class ReplayRecordingBody(Shape):
    """What is otherwise; what is left out is as it is now."""

    instructions = serializers.CharField(
        required=False, allow_blank=True, max_length=LONGEST_INSTRUCTIONS
    )
    endpoint = serializers.CharField(
        required=False, max_length=64, help_text="Slug of a model endpoint."
    )
    policy = PolicyShape(required=False)


class ChangedShape(Shape):
    """What is otherwise; what is as it is now is not there."""

    instructions = serializers.CharField(required=False)
    endpoint = serializers.CharField(required=False)
    policy = PolicyShape(required=False)


class DifferenceShape(Shape):
    """One difference."""

    kind = serializers.ChoiceField(
        [
            *("call_added", "call_missing", "arguments_changed", "decision_changed"),
            *("result_missing", "answer_changed", "ending_changed"),
        ]
    )
    message = serializers.IntegerField(help_text="Number of the message, from 1.")
    turn = serializers.IntegerField(
        help_text="Of the replay; of the recording for what is missing. 0: of none."
    )
    tool = serializers.CharField()
    before = serializers.CharField(help_text="Arguments as JSON, a verdict, or a code.")
    after = serializers.CharField()
    rule = serializers.CharField(help_text="What decides in the replay.")
    code = serializers.CharField(help_text="`not_recorded` where there was no result to give.")
    diff = serializers.ListField(child=serializers.CharField(), help_text="Of an answer.")


class SideShape(Shape):
    """What one side took."""

    turns = serializers.IntegerField()
    calls = serializers.IntegerField()
    tokens = serializers.IntegerField()
    cost_microusd = serializers.IntegerField()


class SidesShape(Shape):
    """What both sides took."""

    before = SideShape()
    after = SideShape()


class RecordingReplayShape(Shape):
    """A replay of a recording."""

    id = serializers.UUIDField()
    recording_id = serializers.UUIDField()
    status = serializers.ChoiceField(Replay.Status.choices)
    changed = ChangedShape()
    differs = serializers.BooleanField(allow_null=True, help_text="Null until it is done.")
    tokens = serializers.IntegerField()
    cost_microusd = serializers.IntegerField()
    error_code = serializers.CharField()
    error_detail = serializers.CharField()
    started_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)


class OneRecordingReplayShape(RecordingReplayShape):
    """A replay with what came of it."""

    differences = DifferenceShape(many=True)
    sides = serializers.SerializerMethodField()
    conversation = ConversationField(allow_null=True)

    @extend_schema_field(SidesShape(allow_null=True))
    def get_sides(self, made: Replay) -> Any:
        """Return turns, calls, tokens and cost of both; null until it is done."""
        if made.conversation is None:
            return None
        recorded = Conversation.read(made.recording.conversation)
        return summed_up(recorded, Conversation.read(made.conversation))


class RecordingResource(Resource):
    """A resource of one recording."""

    def recording(self, recording_id: str) -> Recording:
        """Return a recording that may be seen; raises `NotFound`."""
        rows: Any = Recording.objects.visible_to(self.principal).select_related("agent")
        with named_in_path("recording_id"):
            found: Recording = rows.get_or_404(self.organization_id, pk=recording_id)
        return found


class Recordings(Resource):
    """All recordings."""

    rules = {"GET": READ, "POST": Action.MANAGE_AGENTS}
    narrowed = ("GET",)
    queryset = Recording.objects.none()
    filterset_class = RecordingFilter
    orderings = ("created_at", "title", "tokens", "cost_microusd")

    @operation("list_recordings", answer=RecordingShape(many=True))
    def get(self, request: object) -> Response:
        """List the recordings, the newest first."""
        rows: Any = Recording.objects.visible_to(self.principal)
        return self.listed(rows.select_related("agent").defer("conversation"), RecordingShape)

    @operation("record_session", body=RecordBody, answer=RecordingShape, status=201)
    def post(self, request: object) -> Response:
        """Record a session that rests; secrets are masked."""
        rows: Any = Session.objects.visible_to(self.principal).select_related("agent")
        try:
            found = rows.get_or_404(self.organization_id, pk=self.read(RecordBody)["session_id"])
        except NotFound as problem:
            problem.field = "session_id"
            raise
        return self.shown(record(self.principal, found), RecordingShape, status=201)


class OneRecording(RecordingResource):
    """One recording."""

    rules = {"GET": READ, "DELETE": Action.MANAGE_AGENTS}
    narrowed = ("GET",)

    @operation("get_recording", answer=OneRecordingShape)
    def get(self, request: object, recording_id: str) -> Response:
        """Show a recording with its conversation."""
        return self.shown(self.recording(recording_id), OneRecordingShape)

    @operation("remove_recording", status=204)
    def delete(self, request: object, recording_id: str) -> Response:
        """Remove a recording with its replays."""
        remove(self.principal, self.recording(recording_id))
        return Response(status=204)


class RecordingReplays(RecordingResource):
    """The replays of a recording."""

    rules = {"GET": READ, "POST": Action.MANAGE_AGENTS}
    narrowed = ("GET",)
    queryset = Replay.objects.none()
    filterset_class = ReplayFilter
    orderings = ("created_at", "status")

    @operation("list_recording_replays", answer=RecordingReplayShape(many=True))
    def get(self, request: object, recording_id: str) -> Response:
        """List the replays of a recording, the newest first."""
        rows = self.recording(recording_id).replays.defer("conversation", "differences")
        return self.listed(rows, RecordingReplayShape)

    @operation(
        "replay_recording", body=ReplayRecordingBody, answer=OneRecordingReplayShape, status=201
    )
    def post(self, request: object, recording_id: str) -> Response:
        """Replay a recording with the agent as it would be; its model is really asked.

        Calls are decided and answered from the recording: nothing is sent to a server.
        """
        recording, body = self.recording(recording_id), self.read(ReplayRecordingBody)
        policy = body.pop("policy", None)
        changed = Change(**body, policy=None if policy is None else text_in(policy))
        made = replay(self.principal, recording, changed)
        return self.shown(made, OneRecordingReplayShape, status=201)


class OneRecordingReplay(RecordingResource):
    """One replay."""

    rules = {"GET": READ}
    narrowed = ("GET",)

    @operation("get_recording_replay", answer=OneRecordingReplayShape)
    def get(self, request: object, recording_id: str, replay_id: str) -> Response:
        """Show a replay with what differs."""
        rows: Any = Replay.objects.filter(recording=self.recording(recording_id))
        with named_in_path("replay_id"):
            found = rows.select_related("recording").get_or_404(self.organization_id, pk=replay_id)
        return self.shown(found, OneRecordingReplayShape)
