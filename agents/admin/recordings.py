"""Recordings of an agent's sessions: record, replay and compare."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.admin.policies import CONDITION_SEPARATOR, MODES, parse_posted_policy
from agents.admin.sessions import SessionAdmin
from agents.evaluation.compare_transcripts import (
    RecordedTurn,
    Transcript,
    TranscriptEntry,
    summarize_transcripts,
)
from agents.evaluation.recordings import create_recording, delete_recording
from agents.evaluation.replays import MAX_INSTRUCTIONS_LENGTH, ReplayOverrides, create_replay
from agents.models import Agent, ModelEndpoint, Recording, Replay
from agents.policies.services import Entry, PolicySpec, load_policy_spec
from bonobot.accounts.admin_base import ObjectRequest, add_problem_to_form, redirect_to_page
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import Select, Textarea
from bonobot.core.problems import Problem
from bonobot.core.text.canonical_json import to_canonical_json

DIFFERENCE_TITLES = {
    "call_added": _("Call added"),
    "call_missing": _("Call missing"),
    "arguments_changed": _("Arguments changed"),
    "decision_changed": _("Decision changed"),
    "result_missing": _("No result recorded"),
    "answer_changed": _("Answer changed"),
    "ending_changed": _("Outcome changed"),
}
OVERRIDE_TITLES = {
    "instructions": _("instructions"),
    "endpoint": _("model endpoint"),
    "policy": _("policy"),
}


class ReplayForm(forms.Form):
    """Changes for a replay: instructions, model endpoint and policy."""

    instructions = forms.CharField(
        label=_("Instructions"),
        required=False,
        strip=False,
        max_length=MAX_INSTRUCTIONS_LENGTH,
        widget=Textarea(attrs={"rows": 10}),
    )
    endpoint = forms.ChoiceField(label=_("Model endpoint"), widget=Select)

    def __init__(self, recording: Recording, posted: Any) -> None:
        """Start with the agent's current values, and the session's model endpoint."""
        endpoints = ModelEndpoint.objects.for_organization(recording.organization_id)
        initial = {
            "instructions": recording.agent.instructions,
            "endpoint": recording.effective_endpoint.slug,
        }
        super().__init__(posted, initial=initial)
        self.fields["endpoint"].choices = list(endpoints.values_list("slug", "name"))  # type: ignore[attr-defined]

    def build_overrides(self, recording: Recording) -> ReplayOverrides:
        """Return the changed values; raises `InvalidInput` for an invalid policy."""
        agent = recording.agent
        values, policy = self.cleaned_data, parse_posted_policy(self.data, (), PolicySpec(""))
        text, endpoint = str(values["instructions"]).replace("\r\n", "\n"), values["endpoint"]
        return ReplayOverrides(
            instructions=None if text == agent.instructions else text,
            endpoint=None if endpoint == recording.effective_endpoint.slug else endpoint,
            policy=None if policy == load_policy_spec(agent) else policy,
        )


@dataclass(frozen=True)
class MessageComparison:
    """One message with its recorded and replayed turns and their differences."""

    exchange: TranscriptEntry
    turns: list[tuple[RecordedTurn | None, RecordedTurn | None]]
    differences: list[dict[str, Any]]


def compare_messages(
    replay: Replay, recorded_transcript: Transcript, replayed_transcript: Transcript
) -> list[MessageComparison]:
    return [
        MessageComparison(
            recorded_message,
            list(zip_longest(recorded_message.turns, replayed_message.turns)),
            [
                difference | {"words": DIFFERENCE_TITLES[difference["kind"]]}
                for difference in replay.differences
                if difference["message"] == number
            ],
        )
        for number, (recorded_message, replayed_message) in enumerate(
            zip(recorded_transcript.exchanges, replayed_transcript.exchanges, strict=True), 1
        )
    ]


@SessionAdmin.add_object_action("record", required_actions=Action.MANAGE_AGENTS)
def handle_record(visit: ObjectRequest) -> HttpResponseBase:
    """Record a session and go to its recording."""
    recording = create_recording(visit.principal, visit.object)
    text = _t("Session recorded. Change the instructions, model, or policy, then start a replay.")
    messages.success(visit.request, text)
    address = reverse("admin:agents_agent_recording", args=[recording.agent_id])
    return HttpResponseRedirect(f"{address}?recording={recording.pk}")


@AgentAdmin.add_page("recordings", _("Recordings"), order=51)
def show_recordings(visit: ObjectRequest) -> HttpResponseBase:
    """List the agent's recordings."""
    rows = visit.object.recordings.defer("conversation")
    return visit.render_tab("recordings/list.html", agent=visit.object, paged=visit.paginate(rows))


@AgentAdmin.add_page("recording", parent_tab="recordings")
def show_recording(visit: ObjectRequest) -> HttpResponseBase:
    """Show a recording with its replays and the form for another replay."""
    if "recording" not in visit.request.GET:
        return redirect_to_page(visit, "recordings")
    agent: Agent = visit.object
    recording = _get_recording(visit, visit.request.GET.get("recording"))
    posted = visit.request.POST if visit.request.method == "POST" else None
    form, problem = ReplayForm(recording, posted), None
    if posted is not None:
        visit.principal.require(Action.MANAGE_AGENTS)
        if form.is_valid():
            try:
                replay = create_replay(visit.principal, recording, form.build_overrides(recording))
            except Problem as exc:
                problem = exc
                if exc.field in form.fields:
                    add_problem_to_form(form, exc)
            else:
                return redirect_to_page(visit, "replay", f"?replay={replay.pk}")
    policy = load_policy_spec(agent)
    earlier_replays = recording.replays.defer("conversation", "differences")
    return visit.render_tab(
        "recordings/recording.html",
        agent=agent,
        recording=recording,
        replays=[
            (earlier_replay, _describe_changes(earlier_replay))
            for earlier_replay in earlier_replays
        ],
        form=form,
        mode=posted.get("mode", "") if posted is not None else policy.mode,
        rule_lines=_list_policy_fields(policy, posted),
        modes=MODES,
        problem=problem,
        status=problem.status if problem else 200,
    )


@AgentAdmin.add_page("replay", parent_tab="recordings")
def show_replay(visit: ObjectRequest) -> HttpResponseBase:
    """Show a replay next to its recording."""
    if "replay" not in visit.request.GET:
        return redirect_to_page(visit, "recordings")
    replays = Replay.objects.filter(recording__agent=visit.object).select_related("recording")
    replay: Replay = replays.get_or_404(
        visit.object.organization_id, pk=visit.request.GET["replay"]
    )
    recorded_transcript = Transcript.from_dict(replay.recording.conversation)
    replayed_transcript = (
        None if replay.conversation is None else Transcript.from_dict(replay.conversation)
    )
    return visit.render_tab(
        "recordings/replay.html",
        agent=visit.object,
        replay=replay,
        changes=_describe_changes(replay),
        open=replay.finished_at is None,
        sides=summarize_transcripts(recorded_transcript, replayed_transcript)
        if replayed_transcript
        else None,
        message_differences=compare_messages(replay, recorded_transcript, replayed_transcript)
        if replayed_transcript
        else [],
    )


@AgentAdmin.add_object_action("remove_recording", required_actions=Action.MANAGE_AGENTS)
def handle_delete(visit: ObjectRequest) -> HttpResponseBase:
    """Delete a recording with its replays."""
    delete_recording(visit.principal, _get_recording(visit, visit.request.POST.get("recording")))
    messages.success(visit.request, _t("The recording and its replays were deleted."))
    return redirect_to_page(visit, "recordings")


def _get_recording(visit: ObjectRequest, pk: str | None) -> Recording:
    rows: Any = visit.object.recordings.select_related("agent__model_endpoint", "model_endpoint")
    recording: Recording = rows.get_or_404(visit.object.organization_id, pk=pk)
    return recording


def _describe_changes(replay: Replay) -> str:
    return ", ".join(str(OVERRIDE_TITLES[name]) for name in replay.changed) or _t(
        "nothing (agent unchanged)"
    )


def _list_policy_fields(
    policy: PolicySpec, posted: Mapping[str, Any] | None
) -> list[tuple[str, str]]:
    """Return the fields of a policy with one entry per line, by effect."""
    effects = ("allow", "ask", "deny")
    if posted is not None:
        return [(effect, posted.get(effect, "")) for effect in effects]
    return [(effect, _format_entries(policy.get_entries(effect))) for effect in effects]


def _format_entries(entries: tuple[Entry, ...]) -> str:
    return "\n".join(
        entry
        if isinstance(entry, str)
        else f"{entry.tool}{CONDITION_SEPARATOR}{to_canonical_json(entry.when)}"
        for entry in entries
    )
