"""The notes tab of an agent."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.builtin_tools.toolset_options import NOTES_TOOLSET
from agents.models import Agent, Note
from agents.models.notes import MAX_NOTE_LENGTH, MAX_NOTES, MAX_TITLE_LENGTH
from agents.notes import (
    NOTE_LABELS,
    NoteSpec,
    clear_notes,
    delete_note,
    get_note,
    rank_notes,
    save_note,
)
from bonobot.accounts.admin_base import ObjectRequest, add_problem_to_form, redirect_to_page
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import Textarea, TextInput
from bonobot.core.i18n.localization import format_number
from bonobot.core.problems import Problem
from mcp_servers.flow_labels.effective_labels import LABEL_NAMES


class NoteForm(forms.Form):
    """A note as a person writes it."""

    title = forms.CharField(label=_("Title"), max_length=MAX_TITLE_LENGTH, widget=TextInput)
    text = forms.CharField(
        label=_("Text"), max_length=MAX_NOTE_LENGTH, widget=Textarea(attrs={"rows": 6})
    )
    labels = forms.MultipleChoiceField(
        label=_("Flow labels"),
        required=False,
        choices=[(str(label), LABEL_NAMES[label]) for label in NOTE_LABELS],
        widget=forms.CheckboxSelectMultiple,
        help_text=_(
            "If both are set, calls with an external effect require approval after the note is "
            "read."
        ),
    )


@AgentAdmin.add_page("notes", _("Notes"), order=45)
def show_notes(visit: ObjectRequest) -> HttpResponseBase:
    """Show or search the agent's notes; create or update one."""
    agent: Agent = visit.object
    selected_note = _find_note(visit, agent)
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = NoteForm(posted, initial=_build_initial(selected_note) if selected_note else None)
    if posted is not None:
        visit.principal.require(Action.MANAGE_AGENTS)
        if form.is_valid() and _save_note(visit, agent, form, selected_note):
            messages.success(visit.request, _t("The note was saved."))
            return redirect_to_page(visit, "notes")
    query = visit.request.GET.get("q", "").strip()
    rows: Any = agent.notes.all()
    return visit.render_tab(
        "agents/notes.html",
        agent=agent,
        form=form,
        selected_note=selected_note,
        query=query,
        paged=visit.paginate(rank_notes(rows[:MAX_NOTES], query) if query else rows),
        label_names={label: LABEL_NAMES[label] for label in NOTE_LABELS},
        notes_enabled=NOTES_TOOLSET in agent.builtin_tools,
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
    )


@AgentAdmin.add_object_action("remove_note", required_actions=Action.MANAGE_AGENTS)
def handle_delete_note(visit: ObjectRequest) -> HttpResponseBase:
    agent: Agent = visit.object
    note = agent.notes.get_or_404(agent.organization_id, pk=visit.request.POST.get("note"))
    delete_note(visit.principal, note)
    messages.success(visit.request, _t("The note was deleted."))
    return redirect_to_page(visit, "notes")


@AgentAdmin.add_object_action("clear_notes", required_actions=Action.MANAGE_AGENTS)
def handle_clear_notes(visit: ObjectRequest) -> HttpResponseBase:
    count = clear_notes(visit.principal, visit.object)
    messages.success(visit.request, _t("Notes deleted: %(n)s.") % {"n": format_number(count)})
    return redirect_to_page(visit, "notes")


def _find_note(visit: ObjectRequest, agent: Agent) -> Note | None:
    note_id = visit.request.GET.get("note")
    return get_note(visit.principal, agent, note_id) if note_id else None


def _build_initial(note: Note) -> dict[str, Any]:
    return {
        "title": note.title,
        "text": note.text,
        "labels": [str(label) for label in note.flow_labels],
    }


def _save_note(
    visit: ObjectRequest, agent: Agent, form: NoteForm, existing_note: Note | None
) -> bool:
    try:
        save_note(visit.principal, agent, NoteSpec(**form.cleaned_data), existing_note)
    except Problem as problem:
        add_problem_to_form(form, problem)
        return False
    return True
