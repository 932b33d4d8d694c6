"""REST of an agent's notes."""

from typing import Any

import django_filters
from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentView
from agents.models import Note
from agents.models.agents import LONGEST_NOTE, LONGEST_TITLE, MOST_NOTES
from agents.notes import KEPT_LABELS, NoteSpec, rank_notes, remove_note, save_note
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, set_not_found_field
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictFilterSet
from bonobot.core.api.serializers import VersionedBody, VersionedShape

LABELS = [str(label) for label in KEPT_LABELS]


class NoteFilter(StrictFilterSet):
    """What notes are looked for by."""

    q = django_filters.CharFilter(method="about", label="Words; the notes that hold one of them")

    def about(self, rows: Any, name: str, value: str) -> Any:
        """Return the notes that the agent would find with this query."""
        return rows.filter(pk__in=[one.pk for one in rank_notes(rows[:MOST_NOTES], value)])


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "A note",
            {"title": "Release day", "text": "Releases go out on Tuesdays.", "labels": []},
            request_only=True,
        )
    ]
)
class NoteBody(VersionedBody):
    """A note as it is written."""

    title = serializers.CharField(max_length=LONGEST_TITLE)
    text = serializers.CharField(max_length=LONGEST_NOTE)
    labels = serializers.ListField(
        child=serializers.ChoiceField(LABELS),
        required=False,
        help_text="What reading it brings: whoever reads the note holds these labels.",
    )


class NoteSerializer(VersionedShape):
    """A note of an agent."""

    written_as = (NoteBody,)

    id = serializers.UUIDField()
    title = serializers.CharField()
    text = serializers.CharField()
    labels = serializers.SerializerMethodField()
    written_by = serializers.CharField()
    session_id = serializers.UUIDField(allow_null=True, help_text="In which session, if in one.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()

    def get_labels(self, note: Note) -> list[str]:
        """Return what reading it brings."""
        return [str(label) for label in note.brought]


class AgentNoteListView(AgentView):
    """The notes of an agent."""

    rules = {"GET": READ, "POST": Action.MANAGE_AGENTS}
    queryset = Note.objects.none()
    filterset_class = NoteFilter
    ordering = ("-updated_at", "-pk")
    orderings = ("title", "created_at", "updated_at")

    @describe_operation("list_notes", answer=NoteSerializer(many=True))
    def get(self, request: object, agent_id: str) -> Response:
        """List an agent's notes, the newest first."""
        return self.listed(self.agent(agent_id).notes.all(), NoteSerializer)

    @describe_operation("add_note", body=NoteBody, answer=NoteSerializer, status=201)
    def post(self, request: object, agent_id: str) -> Response:
        """Write a note for an agent."""
        agent = self.agent(agent_id)
        made = save_note(self.principal, agent, NoteSpec(**self.read(NoteBody)))
        return self.shown(made, NoteSerializer, status=201)


class AgentNoteDetailView(AgentView):
    """One note."""

    rules = {"GET": READ, "PATCH": Action.MANAGE_AGENTS, "DELETE": Action.MANAGE_AGENTS}

    @describe_operation("get_note", answer=NoteSerializer)
    def get(self, request: object, agent_id: str, note_id: str) -> Response:
        """Show a note."""
        return self.shown(self._note(agent_id, note_id), NoteSerializer)

    @describe_operation("change_note", body=NoteBody, answer=NoteSerializer)
    def patch(self, request: object, agent_id: str, note_id: str) -> Response:
        """Change parts of a note; what reading it brings stays unless it is said."""
        note = self._note(agent_id, note_id)
        kept = {"title": note.title, "text": note.text, "labels": note.brought}
        spec = NoteSpec(**(kept | self.read(NoteBody, partial=True)))
        return self.shown(save_note(self.principal, note.agent, spec, note), NoteSerializer)

    @describe_operation("remove_note", status=204)
    def delete(self, request: object, agent_id: str, note_id: str) -> Response:
        """Remove a note."""
        remove_note(self.principal, self._note(agent_id, note_id))
        return Response(status=204)

    def _note(self, agent_id: str, note_id: str) -> Note:
        agent = self.agent(agent_id)
        with set_not_found_field("note_id"):
            found: Note = agent.notes.get_or_404(self.organization_id, pk=note_id)
        found.agent = agent
        return found
