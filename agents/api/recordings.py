"""REST of recordings of sessions and their replays."""

from typing import Any, get_args

import django_filters
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.policies import PolicySerializer, build_policy_spec
from agents.evaluation.compare_transcripts import (
    DifferenceKind,
    Transcript,
    summarize_transcripts,
)
from agents.evaluation.recordings import create_recording, delete_recording
from agents.evaluation.replays import MAX_INSTRUCTIONS_LENGTH, ReplayOverrides, create_replay
from agents.models import Recording, Replay, Session
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, ResourceView
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictBooleanFilter, StrictFilterSet
from bonobot.core.api.serializers import StrictSerializer
from mcp_servers.api.serializers import JSON_OBJECT


@extend_schema_field(
    {**JSON_OBJECT, "description": "Messages, model turns, and calls with results."}
)
class TranscriptField(serializers.DictField):
    """The transcript of a session."""


class RecordingFilter(StrictFilterSet):
    """Filters for the list of recordings."""

    agent = django_filters.CharFilter(field_name="agent__slug", label="Slug of the agent")


class RecordingReplayFilter(StrictFilterSet):
    """Filters for the list of replays."""

    status = django_filters.ChoiceFilter(choices=Replay.Status.choices)
    differs = StrictBooleanFilter()


class RecordSessionBody(StrictSerializer):
    """The session to record."""

    session_id = serializers.UUIDField()


class RecordingSerializer(StrictSerializer):
    """A recorded session."""

    id = serializers.UUIDField()
    agent_id = serializers.UUIDField()
    agent = serializers.CharField(source="agent.slug")
    session_id = serializers.UUIDField(help_text="The session; it may have been deleted.")
    title = serializers.CharField()
    turns = serializers.IntegerField()
    calls = serializers.IntegerField()
    tokens = serializers.IntegerField()
    cost_microusd = serializers.IntegerField()
    size = serializers.IntegerField(help_text="Size in bytes.")
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()


class RecordingDetailSerializer(RecordingSerializer):
    """A recorded session with its transcript."""

    conversation = TranscriptField()


class ReplayRecordingBody(StrictSerializer):
    """Changes for the replay; omitted fields use the agent's current values."""

    instructions = serializers.CharField(
        required=False, allow_blank=True, max_length=MAX_INSTRUCTIONS_LENGTH
    )
    endpoint = serializers.CharField(
        required=False, max_length=64, help_text="Slug of a model endpoint."
    )
    policy = PolicySerializer(required=False)


class ReplayOverridesSerializer(StrictSerializer):
    """Changes for the replay; unchanged fields are omitted."""

    instructions = serializers.CharField(required=False)
    endpoint = serializers.CharField(required=False)
    policy = PolicySerializer(required=False)


class TranscriptDifferenceSerializer(StrictSerializer):
    """One difference."""

    kind = serializers.ChoiceField(get_args(DifferenceKind))
    message = serializers.IntegerField(help_text="Number of the message, starting at 1.")
    turn = serializers.IntegerField(
        help_text=(
            "Model turn of the replay, or of the recording if the call is missing in the "
            "replay. 0: none."
        )
    )
    tool = serializers.CharField()
    before = serializers.CharField(help_text="Arguments as JSON, a decision, or a code.")
    after = serializers.CharField()
    rule = serializers.CharField(help_text="The rule that decided in the replay.")
    code = serializers.CharField(
        help_text="`not_recorded` if the recording has no result for the call."
    )
    diff = serializers.ListField(
        child=serializers.CharField(), help_text="Differences between the answers."
    )


class TranscriptUsageSerializer(StrictSerializer):
    """The usage of a recording or replay."""

    turns = serializers.IntegerField()
    calls = serializers.IntegerField()
    tokens = serializers.IntegerField()
    cost_microusd = serializers.IntegerField()


class ReplayUsageSerializer(StrictSerializer):
    """The usage of the recording and the replay."""

    before = TranscriptUsageSerializer()
    after = TranscriptUsageSerializer()


class RecordingReplaySerializer(StrictSerializer):
    """A replay of a recording."""

    id = serializers.UUIDField()
    recording_id = serializers.UUIDField()
    status = serializers.ChoiceField(Replay.Status.choices)
    changed = ReplayOverridesSerializer()
    differs = serializers.BooleanField(
        allow_null=True, help_text="Null until the replay has finished."
    )
    tokens = serializers.IntegerField()
    cost_microusd = serializers.IntegerField()
    error_code = serializers.CharField()
    error_detail = serializers.CharField()
    started_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)


class RecordingReplayDetailSerializer(RecordingReplaySerializer):
    """A replay with its results."""

    differences = TranscriptDifferenceSerializer(many=True)
    sides = serializers.SerializerMethodField()
    conversation = TranscriptField(allow_null=True)

    @extend_schema_field(ReplayUsageSerializer(allow_null=True))
    def get_sides(self, replay: Replay) -> dict[str, Any] | None:
        """Return the usage of the recording and the replay; None until the replay has finished."""
        if replay.conversation is None:
            return None
        recorded = Transcript.from_dict(replay.recording.conversation)
        return summarize_transcripts(recorded, Transcript.from_dict(replay.conversation))


class RecordingView(ResourceView):
    """Base class of the views of one recording."""

    def get_recording(self, recording_id: str) -> Recording:
        """Return the visible recording with this id; raises `NotFound`."""
        recordings = Recording.objects.visible_to(self.principal).select_related("agent")
        return self.get_row(Recording, recordings, recording_id=recording_id)


class RecordingListView(ResourceView):
    """All recordings."""

    rules = {"GET": READ, "POST": Action.MANAGE_AGENTS}
    agent_token_methods = ("GET",)
    queryset = Recording.objects.none()
    filterset_class = RecordingFilter
    orderings = ("created_at", "title", "tokens", "cost_microusd")

    @describe_operation("list_recordings", answer=RecordingSerializer(many=True))
    def get(self, request: object) -> Response:
        """List recordings, newest first."""
        recordings = Recording.objects.visible_to(self.principal).select_related("agent")
        return self.respond_page(recordings.defer("conversation"), RecordingSerializer)

    @describe_operation(
        "record_session", body=RecordSessionBody, answer=RecordingSerializer, status=201
    )
    def post(self, request: object) -> Response:
        """Record a session that isn't running; secrets are masked."""
        session_id = self.read_body(RecordSessionBody)["session_id"]
        sessions = Session.objects.visible_to(self.principal).select_related("agent")
        session = self.get_row(Session, sessions, session_id=session_id)
        recording = create_recording(self.principal, session)
        return self.respond_row(recording, RecordingSerializer, status=201)


class RecordingDetailView(RecordingView):
    """One recording."""

    rules = {"GET": READ, "DELETE": Action.MANAGE_AGENTS}
    agent_token_methods = ("GET",)

    @describe_operation("get_recording", answer=RecordingDetailSerializer)
    def get(self, request: object, recording_id: str) -> Response:
        """Get a recording with its transcript."""
        return self.respond_row(self.get_recording(recording_id), RecordingDetailSerializer)

    @describe_operation("delete_recording", status=204)
    def delete(self, request: object, recording_id: str) -> Response:
        """Delete a recording with its replays."""
        delete_recording(self.principal, self.get_recording(recording_id))
        return Response(status=204)


class RecordingReplayListView(RecordingView):
    """The replays of a recording."""

    rules = {"GET": READ, "POST": Action.MANAGE_AGENTS}
    agent_token_methods = ("GET",)
    queryset = Replay.objects.none()
    filterset_class = RecordingReplayFilter
    orderings = ("created_at", "status")

    @describe_operation("list_recording_replays", answer=RecordingReplaySerializer(many=True))
    def get(self, request: object, recording_id: str) -> Response:
        """List the replays of a recording, newest first."""
        replays = self.get_recording(recording_id).replays.defer("conversation", "differences")
        return self.respond_page(replays, RecordingReplaySerializer)

    @describe_operation(
        "replay_recording",
        body=ReplayRecordingBody,
        answer=RecordingReplayDetailSerializer,
        status=201,
    )
    def post(self, request: object, recording_id: str) -> Response:
        """Replay a recording with a changed agent.

        The model is called. Calls are decided, but their results come from the recording: nothing
        is sent to servers.
        """
        recording = self.get_recording(recording_id)
        body = self.read_body(ReplayRecordingBody)
        policy = body.pop("policy", None)
        overrides = ReplayOverrides(
            **body, policy=None if policy is None else build_policy_spec(policy)
        )
        replay = create_replay(self.principal, recording, overrides)
        return self.respond_row(replay, RecordingReplayDetailSerializer, status=201)


class RecordingReplayDetailView(RecordingView):
    """One replay."""

    rules = {"GET": READ}
    agent_token_methods = ("GET",)

    @describe_operation("get_recording_replay", answer=RecordingReplayDetailSerializer)
    def get(self, request: object, recording_id: str, replay_id: str) -> Response:
        """Get a replay with the differences from the recording."""
        recording = self.get_recording(recording_id)
        replays = Replay.objects.filter(recording=recording).select_related("recording")
        replay = self.get_row(Replay, replays, replay_id=replay_id)
        return self.respond_row(replay, RecordingReplayDetailSerializer)
