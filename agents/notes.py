"""Notes that agents keep for later sessions, and that people can edit.

An agent writes through its tools, where the call is audited; people write through the functions
here, which are audited as changes.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from agents.flow_labels.services import list_current_labels
from agents.models import Agent, Note
from agents.models.notes import MAX_NOTE_LENGTH, MAX_NOTES, MAX_TITLE_LENGTH
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.crypto.organization_secrets import mask_organization_secrets
from bonobot.core.db.transactions import lock_row
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from mcp_servers.flow_labels import FlowLabel, decode_labels, encode_labels

_WORD = re.compile(r"\w+")
# Weights of a match in the title and in the text.
TITLE_WEIGHT, TEXT_WEIGHT = 3, 1
# Labels that a note may carry; external effect is not a property of a text.
NOTE_LABELS = (FlowLabel.PRIVATE_DATA, FlowLabel.UNTRUSTED_CONTENT)


@dataclass(frozen=True)
class NoteSpec:
    """A note as a person writes it; reading it adds `labels`."""

    title: str
    text: str
    labels: Sequence[str] = ()


def search_notes(agent_id: UUID, query: str, *, limit: int) -> list[Note]:
    """Return an agent's notes that match `query`, best first; without words, the newest."""
    rows = Note.objects.filter(agent=agent_id)
    if not split_words(query):
        return list(rows[:limit])
    return rank_notes(rows[:MAX_NOTES], query)[:limit]


def rank_notes(notes: Iterable[Note], query: str) -> list[Note]:
    """Return the notes that contain a word of the query, best match first."""
    query_words = split_words(query)
    scored = [(_compute_score(note, query_words), note) for note in notes]
    # Sorting is stable: among equal scores, newer notes stay first.
    return [note for score, note in sorted(scored, key=lambda item: -item[0]) if score]


def split_words(text: str) -> frozenset[str]:
    """Return the case-folded words of a text."""
    return frozenset(word.casefold() for word in _WORD.findall(text))


def _compute_score(note: Note, query_words: frozenset[str]) -> int:
    return TITLE_WEIGHT * len(query_words & split_words(note.title)) + TEXT_WEIGHT * len(
        query_words & split_words(note.text)
    )


def save_agent_note(
    organization_id: UUID,
    agent_id: UUID,
    title: str,
    text: str,
    *,
    labels: int,
    written_by: str,
    session_id: UUID | None,
) -> tuple[Note, bool]:
    """Save an agent's note, replacing the one with this title; return it and whether it is new.

    Raises `InvalidInput` (empty), `Conflict` (code `notes_full`).
    """
    title, text = _clean_note(title, text, organization_id)
    values = {"text": text, "labels": labels, "written_by": written_by, "session_id": session_id}
    agent_notes = Note.objects.filter(agent=agent_id)
    with transaction.atomic():
        if agent_notes.filter(title=title).update(**values, updated_at=timezone.now()):
            return agent_notes.get(title=title), False
        lock_row(Agent(pk=agent_id))
        _check_note_limit(agent_notes.count())
        created_note = Note(
            organization_id=organization_id, agent_id=agent_id, title=title, **values
        )
        created_note.save(force_insert=True)
    return created_note, True


def delete_agent_note(agent_id: UUID, title: str) -> bool:
    """Delete an agent's note by its title; return whether there was one."""
    return bool(Note.objects.filter(agent=agent_id, title=title).delete()[0])


def save_note(principal: Principal, agent: Agent, spec: NoteSpec, note: Note | None = None) -> Note:
    """Create or update a note; raises `InvalidInput`, `Conflict` (`name_taken`, `notes_full`).

    A person sets the labels freely; the labels that a token currently carries are always added.
    """
    principal.require(Action.MANAGE_AGENTS)
    title, text = _clean_note(spec.title, spec.text, agent.organization_id)
    if unknown_labels := sorted(set(spec.labels) - set(NOTE_LABELS)):
        raise InvalidInput(
            format_message(
                "A note can't have the label {name!r}.", name=str(unknown_labels[0])[:100]
            ),
            field="labels",
            remedy=format_message("Use one or more of: {values}.", values=", ".join(NOTE_LABELS)),
        )
    other_notes = agent.notes.exclude(pk=note.pk) if note else agent.notes.all()
    if other_notes.filter(title=title).exists():
        raise Conflict(
            format_message("A note titled {title!r} already exists.", title=title),
            code="name_taken",
            field="title",
            remedy="Change that note, or choose another title.",
        )
    action = "note_updated" if note else "note_created"
    is_new = note is None
    if note is None:
        note = Note(organization_id=agent.organization_id, agent=agent)
    labels = encode_labels(spec.labels) | _get_writer_labels(principal, agent)
    note.title, note.text, note.labels = title, text, labels
    note.written_by, note.session_id = principal.label, None
    with _record_change(principal, note, action, labels=list(decode_labels(labels))):
        if is_new:
            lock_row(agent)
            _check_note_limit(agent.notes.count())
        note.save()
    return note


def _get_writer_labels(principal: Principal, agent: Agent) -> int:
    """Return the labels that a token's writes get; people's writes get none."""
    if principal.kind != "token":
        return 0
    return encode_labels(list_current_labels(principal, session_id=None, agent_id=agent.pk))


def delete_note(principal: Principal, note: Note) -> None:
    """Delete a note; the deletion is audited."""
    principal.require(Action.MANAGE_AGENTS)
    with _record_change(principal, note, "note_deleted"):
        note.delete()


def clear_notes(principal: Principal, agent: Agent) -> int:
    """Delete all notes of an agent and return how many there were."""
    principal.require(Action.MANAGE_AGENTS)
    details = {"removed": 0}
    with record_change(
        **describe_row("agent", agent),
        actor=principal.actor,
        action="notes_deleted",
        details=details,
        governed=False,
    ):
        details["removed"] = agent.notes.all().delete()[0]
    return details["removed"]


def get_note(principal: Principal, agent: Agent, title: str) -> Note:
    """Return an agent's note by its title or id; raises `NotFound`."""
    by_title = agent.notes.filter(title=title).first()
    if by_title is not None:
        return by_title
    note: Note = agent.notes.get_or_404(principal.organization_id, pk=title)
    return note


def _record_change(
    principal: Principal, note: Note, action: str, **details: Any
) -> AbstractContextManager[Any]:
    return record_change(
        **describe_row("note", note, note.title),
        actor=principal.actor,
        action=action,
        details={"agent_id": str(note.agent_id), **details},
        governed=False,
    )


def _clean_note(title: str, text: str, organization_id: UUID) -> tuple[str, str]:
    """Return title and text without stored secrets; raises `InvalidInput` if empty or too long."""
    title = " ".join(str(make_storable(mask_organization_secrets(title, organization_id))).split())
    text = str(make_storable(mask_organization_secrets(text, organization_id))).strip()
    for field, content, max_length in (
        ("title", title, MAX_TITLE_LENGTH),
        ("text", text, MAX_NOTE_LENGTH),
    ):
        if not content:
            raise InvalidInput(
                format_message("The note has no {field}.", field=field),
                field=field,
                remedy=format_message("Enter a {field}.", field=field),
            )
        if len(content) > max_length:
            raise InvalidInput(
                format_message(
                    "The {field} has {count} characters.",
                    field=field,
                    count=len(content),
                ),
                field=field,
                remedy=format_message(
                    "Use at most {longest} characters, or split the note.",
                    longest=max_length,
                ),
            )
    return title, text


def _check_note_limit(count: int) -> None:
    if count >= MAX_NOTES:
        raise Conflict(
            format_message("The agent has {count} notes, which is the maximum.", count=count),
            code="notes_full",
            remedy="Delete some notes first, or merge several into one.",
        )
