"""REST of an agent's notes."""

from typing import Any

import django_filters
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentView
from agents.models import Note
from agents.models.notes import MAX_NOTE_LENGTH, MAX_NOTES, MAX_TITLE_LENGTH
from agents.notes import NOTE_LABELS, NoteSpec, delete_note, rank_notes, save_note
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictFilterSet
from bonobot.core.api.serializers import VersionedBody, VersionedSerializer

LABEL_CHOICES = [str(label) for label in NOTE_LABELS]


class NoteFilter(StrictFilterSet):
    """Filters for the list of notes."""

    q = django_filters.CharFilter(
        method="filter_by_query", label="Words; returns notes that contain any of them"
    )

    def filter_by_query(self, rows: Any, name: str, value: str) -> Any:
        """Return the notes that the agent would find with this query."""
        return rows.filter(pk__in=[note.pk for note in rank_notes(rows[:MAX_NOTES], value)])


class NoteBody(VersionedBody):
    """A note to create or update."""

    title = serializers.CharField(max_length=MAX_TITLE_LENGTH)
    text = serializers.CharField(max_length=MAX_NOTE_LENGTH)
    labels = serializers.ListField(
        child=serializers.ChoiceField(LABEL_CHOICES),
        required=False,
        help_text="Flow labels that reading the note adds.",
    )


class NoteSerializer(VersionedSerializer):
    """A note of an agent."""

    body_classes = (NoteBody,)

    id = serializers.UUIDField()
    title = serializers.CharField()
    text = serializers.CharField()
    labels = serializers.SerializerMethodField(help_text="Flow labels that reading the note adds.")
    written_by = serializers.CharField()
    session_id = serializers.UUIDField(
        allow_null=True, help_text="The session that wrote it, if any."
    )
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()

    def get_labels(self, note: Note) -> list[str]:
        return [str(label) for label in note.flow_labels]


class AgentNoteListView(AgentView):
    """The notes of an agent."""

    rules = {"GET": READ, "POST": Action.MANAGE_AGENTS}
    queryset = Note.objects.none()
    filterset_class = NoteFilter
    ordering = ("-updated_at", "-pk")
    orderings = ("title", "created_at", "updated_at")

    @describe_operation("list_notes", answer=NoteSerializer(many=True))
    def get(self, request: object, agent_id: str) -> Response:
        """List an agent's notes, newest first."""
        return self.respond_page(self.get_agent(agent_id).notes.all(), NoteSerializer)

    @describe_operation("create_note", body=NoteBody, answer=NoteSerializer, status=201)
    def post(self, request: object, agent_id: str) -> Response:
        """Create a note for an agent."""
        agent = self.get_agent(agent_id)
        note = save_note(self.principal, agent, NoteSpec(**self.read_body(NoteBody)))
        return self.respond_row(note, NoteSerializer, status=201)


class AgentNoteDetailView(AgentView):
    """One note."""

    rules = {"GET": READ, "PATCH": Action.MANAGE_AGENTS, "DELETE": Action.MANAGE_AGENTS}

    @describe_operation("get_note", answer=NoteSerializer)
    def get(self, request: object, agent_id: str, note_id: str) -> Response:
        """Get a note."""
        return self.respond_row(self._get_note(agent_id, note_id), NoteSerializer)

    @describe_operation("update_note", body=NoteBody, answer=NoteSerializer)
    def patch(self, request: object, agent_id: str, note_id: str) -> Response:
        """Update a note; its flow labels are unchanged if omitted."""
        note = self._get_note(agent_id, note_id)
        stored_values = {"title": note.title, "text": note.text, "labels": note.flow_labels}
        spec = NoteSpec(**stored_values | self.read_body(NoteBody, partial=True))
        note = save_note(self.principal, note.agent, spec, note)
        return self.respond_row(note, NoteSerializer)

    @describe_operation("delete_note", status=204)
    def delete(self, request: object, agent_id: str, note_id: str) -> Response:
        """Delete a note."""
        delete_note(self.principal, self._get_note(agent_id, note_id))
        return Response(status=204)

    def _get_note(self, agent_id: str, note_id: str) -> Note:
        agent = self.get_agent(agent_id)
        note = self.get_row(Note, agent.notes, note_id=note_id)
        note.agent = agent  # spares a query
        return note
