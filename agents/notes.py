"""Notes: what an agent keeps for later sessions, and what people see and change of it (D6).

An agent writes by its tools, through the door, whose audit row is the record; people write by the
operations here, which are audited as changes.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from agents.holding import held_now
from agents.models import Agent, Note
from agents.models.notes import LONGEST_NOTE, LONGEST_TITLE, MOST_NOTES
from bonobot.ledger.changes import change
from bonobot.lib.known_secrets import without_secrets
from bonobot.lib.problems import Conflict, Invalid
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import storable
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.labels import Label, bits, labels_in

_WORD = re.compile(r"\w+")
# A word in the title says more about a note than one in its text.
IN_TITLE, IN_TEXT = 3, 1
# What a note may bring: a way out is no property of a text.
KEPT_LABELS = (Label.PRIVATE_DATA, Label.UNTRUSTED_CONTENT)


@dataclass(frozen=True)
class NoteSpec:
    """A note as a person writes it; `labels` are what reading it brings."""

    title: str
    text: str
    labels: Sequence[str] = ()


def search(agent_id: UUID, query: str, *, limit: int) -> list[Note]:
    """Return an agent's notes about `query`, the best first; without words, the newest."""
    rows = Note.objects.filter(agent=agent_id)
    if not words(query):
        return list(rows[:limit])
    return ranked(rows[:MOST_NOTES], query)[:limit]


def ranked(notes: Iterable[Note], query: str) -> list[Note]:
    """Return those notes that hold a word of the query, by how much they say of it."""
    wanted = words(query)
    scored = [(_score(note, wanted), note) for note in notes]
    # Sorting is stable: of equals, the newer one stays first.
    return [note for score, note in sorted(scored, key=lambda one: -one[0]) if score]


def words(text: str) -> frozenset[str]:
    """Return the words of a text as they are compared."""
    return frozenset(word.casefold() for word in _WORD.findall(text))


def _score(note: Note, wanted: frozenset[str]) -> int:
    return IN_TITLE * len(wanted & words(note.title)) + IN_TEXT * len(wanted & words(note.text))


def keep(
    organization_id: UUID,
    agent_id: UUID,
    title: str,
    text: str,
    *,
    labels: int,
    by: str,
    session_id: UUID | None,
) -> tuple[Note, bool]:
    """Keep an agent's own note, replacing the one of this title; tell whether it is a new one.

    Raises `Invalid` (empty), `Conflict` (code `notes_full`).
    """
    title, text = _checked(title, text, organization_id)
    values = {"text": text, "labels": labels, "written_by": by, "session_id": session_id}
    mine = Note.objects.filter(agent=agent_id)
    with transaction.atomic():
        if mine.filter(title=title).update(**values, updated_at=timezone.now()):
            return mine.get(title=title), False
        _room(mine.count())
        made = Note(organization_id=organization_id, agent_id=agent_id, title=title, **values)
        made.save(force_insert=True)
    return made, True


def forget(agent_id: UUID, title: str) -> bool:
    """Remove an agent's note by its title; tell whether there was one."""
    return bool(Note.objects.filter(agent=agent_id, title=title).delete()[0])


def save_note(principal: Principal, agent: Agent, spec: NoteSpec, note: Note | None = None) -> Note:
    """Write or change a note by hand; raises `Invalid`, `Conflict` (`name_taken`, `notes_full`).

    Whoever changes a note says what reading it brings from then on; of what a token holds, it can
    take nothing away.
    """
    principal.require(Action.MANAGE_AGENTS)
    title, text = _checked(spec.title, spec.text, agent.organization_id)
    if strange := sorted(set(spec.labels) - set(KEPT_LABELS)):
        raise Invalid(
            say("A note can't bring {strange!r}.", strange=str(strange[0])[:100]),
            field="labels",
            remedy=say("Use some of: {kept_labels}.", kept_labels=", ".join(KEPT_LABELS)),
        )
    others = agent.notes.exclude(pk=note.pk) if note else agent.notes.all()
    if others.filter(title=title).exists():
        raise Conflict(
            say("There is a note {title!r} already.", title=title),
            code="name_taken",
            field="title",
            remedy="Change that one, or choose another title.",
        )
    action = "note_changed" if note else "note_added"
    if note is None:
        _room(agent.notes.count())
        note = Note(organization_id=agent.organization_id, agent=agent)
    labels = bits(spec.labels) | _held_by_writer(principal, agent)
    note.title, note.text, note.labels = title, text, labels
    note.written_by, note.session_id = principal.label, None
    with _recorded(principal, note, action, labels=list(labels_in(labels))):
        note.save()
    return note


def _held_by_writer(principal: Principal, agent: Agent) -> int:
    """Return the labels that a token leaves in what it writes; people have read what they write."""
    if principal.kind != "token":
        return 0
    return bits(held_now(principal, session_id=None, agent_id=agent.pk))


def remove_note(principal: Principal, note: Note) -> None:
    """Remove a note; the audit keeps that it was there."""
    principal.require(Action.MANAGE_AGENTS)
    with _recorded(principal, note, "note_removed"):
        note.delete()


def clear_notes(principal: Principal, agent: Agent) -> int:
    """Remove all notes of an agent and return how many there were."""
    principal.require(Action.MANAGE_AGENTS)
    details = {"removed": 0}
    with change(
        organization_id=agent.organization_id,
        actor=principal.actor,
        action="notes_cleared",
        resource_type="agent",
        resource_id=str(agent.pk),
        resource_name=agent.name,
        details=details,
        governed=False,
    ):
        details["removed"] = agent.notes.all().delete()[0]
    return details["removed"]


def note_of(principal: Principal, agent: Agent, title: str) -> Note:
    """Return an agent's note by its title or id; raises `NotFound`."""
    by_title = agent.notes.filter(title=title).first()
    if by_title is not None:
        return by_title
    found: Note = agent.notes.get_or_404(principal.organization_id, pk=title)
    return found


def _recorded(
    principal: Principal, note: Note, action: str, **details: Any
) -> AbstractContextManager[Any]:
    return change(
        organization_id=note.organization_id,
        actor=principal.actor,
        action=action,
        resource_type="note",
        resource_id=str(note.pk),
        resource_name=note.title,
        details={"agent_id": str(note.agent_id), **details},
        governed=False,
    )


def _checked(title: str, text: str, organization_id: UUID) -> tuple[str, str]:
    """Return both as they are kept: without stored secrets, in bounds; raises `Invalid`."""
    title = " ".join(str(storable(without_secrets(title, organization_id))).split())
    text = str(storable(without_secrets(text, organization_id))).strip()
    for field, said, longest in (("title", title, LONGEST_TITLE), ("text", text, LONGEST_NOTE)):
        if not said:
            raise Invalid(
                say("The note has no {field}.", field=field),
                field=field,
                remedy=say("Write a {field}.", field=field),
            )
        if len(said) > longest:
            raise Invalid(
                say(
                    "The {field} has {count} characters.",
                    field=field,
                    count=len(said),
                ),
                field=field,
                remedy=say(
                    "At most {longest} are kept: say it shorter, or in several notes.",
                    longest=longest,
                ),
            )
    return title, text


def _room(count: int) -> None:
    if count >= MOST_NOTES:
        raise Conflict(
            say("The agent has {count} notes, which is the most that it may have.", count=count),
            code="notes_full",
            remedy="Forget some first, or put several into one.",
        )
