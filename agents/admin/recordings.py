"""Recordings of an agent's sessions: kept, tried on the agent as it would be, laid side by side."""

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.admin.replaying import policy_in, policy_words
from agents.admin.ruling import MODES
from agents.admin.sessions import SessionAdmin
from agents.evaluation.conversations import Conversation, Exchange, Told
from agents.evaluation.differences import summed_up
from agents.evaluation.recordings import record, remove
from agents.evaluation.replays import LONGEST_INSTRUCTIONS, Change, replay
from agents.models import Agent, ModelEndpoint, Recording, Replay
from agents.tool_policies import policy_text
from bonobot.lib.admin import Select, Textarea
from bonobot.lib.problems import Problem
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit, onward, refuse

SHOWN_AT_ONCE = 30
WORDS = {
    "call_added": _("Call added"),
    "call_missing": _("Call missing"),
    "arguments_changed": _("Arguments changed"),
    "decision_changed": _("Decided otherwise"),
    "result_missing": _("No result recorded"),
    "answer_changed": _("Answer changed"),
    "ending_changed": _("Ended otherwise"),
}
WHAT = {
    "instructions": _("instructions"),
    "endpoint": _("model endpoint"),
    "policy": _("policy"),
}


class ReplayForm(forms.Form):
    """What is otherwise than now: the instructions, the model endpoint."""

    instructions = forms.CharField(
        label=_("Instructions"),
        required=False,
        strip=False,
        max_length=LONGEST_INSTRUCTIONS,
        widget=Textarea(attrs={"rows": 10}),
    )
    endpoint = forms.ChoiceField(label=_("Model endpoint"), widget=Select)

    def __init__(self, agent: Agent, posted: Any) -> None:
        """Begin with what the agent is now."""
        found = ModelEndpoint.objects.for_organization(agent.organization_id)
        initial = {"instructions": agent.instructions, "endpoint": agent.model_endpoint.slug}
        super().__init__(posted, initial=initial)
        self.fields["endpoint"].choices = list(found.values_list("slug", "name"))  # type: ignore[attr-defined]

    def changed(self, agent: Agent) -> Change:
        """Return what isn't as it is now; raises `Invalid` for a policy that means nothing."""
        said, policy = self.cleaned_data, policy_in(self.data)
        text, endpoint = str(said["instructions"]).replace("\r\n", "\n"), said["endpoint"]
        return Change(
            instructions=None if text == agent.instructions else text,
            endpoint=None if endpoint == agent.model_endpoint.slug else endpoint,
            policy=None if policy == policy_text(agent) else policy,
        )


@dataclass(frozen=True)
class Beside:
    """One message with its turns on both sides, and what differs about it."""

    exchange: Exchange
    turns: list[tuple[Told | None, Told | None]]
    differences: list[dict[str, Any]]


def beside(made: Replay, recorded: Conversation, played: Conversation) -> list[Beside]:
    """Return what a replay came to, message by message."""
    return [
        Beside(
            was,
            list(zip_longest(was.turns, would.turns)),
            [
                one | {"words": WORDS[one["kind"]]}
                for one in made.differences
                if one["message"] == number
            ],
        )
        for number, (was, would) in enumerate(
            zip(recorded.exchanges, played.exchanges, strict=True), 1
        )
    ]


@SessionAdmin.add_deed("record", needs=Action.MANAGE_AGENTS)
def keep(visit: Visit) -> HttpResponseBase:
    """Record a session and go to its recording."""
    made = record(visit.principal, visit.object)
    messages.success(visit.request, _t("Recorded. Change something here and replay it."))
    address = reverse("admin:agents_agent_recording", args=[made.agent_id])
    return HttpResponseRedirect(f"{address}?recording={made.pk}")


@AgentAdmin.add_page("recordings", _("Recordings"), order=51)
def recordings(visit: Visit) -> HttpResponseBase:
    """List the agent's recordings."""
    rows = visit.object.recordings.defer("conversation")
    page = Paginator(rows, SHOWN_AT_ONCE).get_page(visit.request.GET.get("page"))
    return visit.show("agents/recordings.html", agent=visit.object, paged=page)


@AgentAdmin.add_page("recording", under="recordings")
def one_recording(visit: Visit) -> HttpResponseBase:
    """Show a recording with its replays, and a form that replays it with something changed."""
    if "recording" not in visit.request.GET:
        return onward(visit, "recordings")
    agent: Agent = visit.object
    recording = _recording(visit, visit.request.GET.get("recording"))
    posted = visit.request.POST if visit.request.method == "POST" else None
    form, problem = ReplayForm(agent, posted), None
    if posted is not None:
        visit.principal.require(Action.MANAGE_AGENTS)
        if form.is_valid():
            try:
                made = replay(visit.principal, recording, form.changed(agent))
            except Problem as found:
                problem = found
                if found.field in form.fields:
                    refuse(form, found)
            else:
                return onward(visit, "replayed", f"?replay={made.pk}")
    text = policy_text(agent)
    made_before = recording.replays.defer("conversation", "differences")
    return visit.show(
        "agents/recording.html",
        agent=agent,
        recording=recording,
        replays=[(one, _what(one)) for one in made_before],
        form=form,
        mode=posted.get("mode", "") if posted is not None else text.mode,
        words=policy_words(text, posted),
        modes=MODES,
        problem=problem,
        status=problem.status if problem else 200,
    )


@AgentAdmin.add_page("replayed", under="recordings")
def one_replay(visit: Visit) -> HttpResponseBase:
    """Show a replay beside its recording."""
    if "replay" not in visit.request.GET:
        return onward(visit, "recordings")
    rows: Any = Replay.objects.filter(recording__agent=visit.object).select_related("recording")
    made: Replay = rows.get_or_404(visit.object.organization_id, pk=visit.request.GET["replay"])
    recorded = Conversation.read(made.recording.conversation)
    played = None if made.conversation is None else Conversation.read(made.conversation)
    return visit.show(
        "agents/replayed_recording.html",
        agent=visit.object,
        made=made,
        what=_what(made),
        open=made.finished_at is None,
        sides=summed_up(recorded, played) if played else None,
        messages_told=beside(made, recorded, played) if played else [],
    )


@AgentAdmin.add_deed("remove_recording", needs=Action.MANAGE_AGENTS)
def drop(visit: Visit) -> HttpResponseBase:
    """Remove a recording with its replays."""
    remove(visit.principal, _recording(visit, visit.request.POST.get("recording")))
    messages.success(visit.request, _t("The recording is gone, with its replays."))
    return onward(visit, "recordings")


def _recording(visit: Visit, pk: str | None) -> Recording:
    rows: Any = visit.object.recordings.select_related("agent__model_endpoint")
    found: Recording = rows.get_or_404(visit.object.organization_id, pk=pk)
    return found


def _what(made: Replay) -> str:
    """Return what was otherwise, in words."""
    return ", ".join(str(WHAT[name]) for name in made.changed) or _t("nothing, the agent as it is")
