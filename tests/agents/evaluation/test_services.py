"""Recordings and replays: the offline model, a real server that mustn't be touched, and rows."""

from datetime import timedelta

import pytest
from django.utils import timezone

from agents.budgets.services import BudgetLine, set_budgets
from agents.evaluation import replay_runner
from agents.evaluation import services as evaluation
from agents.evaluation.services import (
    ReplayOverrides,
    create_recording,
    create_replay,
    delete_recording,
)
from agents.evaluation.transcripts import Transcript
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import ModelEndpoint, Recording, Replay, Runner, Session
from agents.policies.services import PolicySpec, set_policy
from agents.services import AgentSpec, update_agent
from agents.sessions import leases
from agents.sessions import services as sessions
from agents.tasks import sweep
from bonobot.accounts.roles import Role
from bonobot.core.problems import Conflict, Forbidden, InvalidInput, NotFound
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.agents.llm.openai_server import Refuses, Says

pytestmark = pytest.mark.django_db(transaction=True)

MARK = '/mcp_workshop_count {"what": "x"}'
ECHO = '/mcp_workshop_echo {"text": "hello"}'


@pytest.fixture
def boss(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def played(runner, boss):
    """A function that replays a recording to its end."""

    def go(recording, **changed):
        made = create_replay(boss, recording, ReplayOverrides(**changed))
        get_runtime().call(replay_runner.run_replay, made.pk)
        return Replay.objects.select_related("recording").get(pk=made.pk)

    return go


def kinds(made):
    return [one["kind"] for one in made.differences]


def calls_of(made):
    return Transcript.from_dict(made.conversation).calls


def test_an_unchanged_replay_is_identical_and_contacts_no_server(
    boss, acme, workshop, effects, run, played
):
    session = run(f"{ECHO}\n{MARK}")
    before = effects.read_text()
    recording = create_recording(boss, session)
    assert (recording.turns, recording.calls, recording.title) == (2, 2, session.title)
    session.delete()
    made = played(recording)
    assert made.status == Replay.Status.DONE, made.error_detail
    assert made.differences == []
    assert made.differs is False
    assert made.tokens == recording.tokens > 0
    again = played(recording)
    assert again.conversation["exchanges"][0]["turns"] == made.conversation["exchanges"][0]["turns"]
    assert effects.read_text() == before == "x\n", "nothing was sent"
    rows = AuditRow.objects.filter(action="agent_evaluation")
    assert rows.count() == 4
    assert set(rows.values_list("outcome", flat=True)) == {"ok"}
    assert AuditRow.objects.filter(action="agent_tool_call").count() == 2, "those of the session"
    assert not Session.objects.exists()


def test_denials_of_a_changed_policy_are_differences(boss, helper, workshop, run, played):
    recording = create_recording(boss, run(ECHO))
    denied = played(recording, policy=PolicySpec("denylist", deny=("mcp_workshop_echo",)))
    decided = denied.differences[0]
    assert (decided["kind"], decided["before"], decided["after"]) == (
        "decision_changed",
        "allow",
        "deny",
    )
    assert calls_of(denied)[0].code == "denied_by_policy"
    asked = played(recording, policy=PolicySpec("all", ask=("mcp_workshop_echo",)))
    assert kinds(asked) == ["decision_changed"], "it counts as answered with a yes"
    assert calls_of(asked)[0].text == calls_of(played(recording))[0].text
    helper.refresh_from_db()
    assert helper.tool_policy.mode == "all"
    assert not helper.tool_policy.rules.exists()


def test_a_denied_call_has_no_result(boss, helper, workshop, run, played):
    set_policy(boss, helper, PolicySpec("denylist", deny=("mcp_workshop_echo",)))
    recording = create_recording(boss, run(ECHO))
    assert played(recording).differences == []
    opened = played(recording, policy=PolicySpec("all"))
    assert calls_of(opened)[0].code == "not_recorded"
    assert opened.differences[0]["code"] == "not_recorded"
    assert (opened.differences[0]["before"], opened.differences[0]["after"]) == ("deny", "allow")


def test_changed_instructions_and_models_are_used(boss, helper, workshop, run, played, fake):
    recording = create_recording(boss, run(ECHO))
    other = save_endpoint(
        boss,
        ModelEndpointSpec(
            name="Other", kind="openai", base_url=fake.url, model="m", api_key="k",
            allow_private=True,
        ),
    )  # fmt: skip
    asked = (("c1", "mcp_workshop_echo", '{"text": "other"}'),)
    fake.script += [Says(calls=asked), Says(text="All done.")]
    made = played(recording, instructions="Be brief.", endpoint=other.slug)
    assert made.status == Replay.Status.DONE, made.error_detail
    assert kinds(made) == ["arguments_changed", "answer_changed"]
    assert made.differences[0]["code"] == "not_recorded"
    assert fake.read(0).system.startswith("Be brief.")
    assert made.changed == {"instructions": "Be brief.", "endpoint": other.slug}
    helper.refresh_from_db()
    assert helper.instructions != "Be brief."


def test_a_replay_spends_within_the_agents_budget(boss, helper, workshop, run, played):
    recording = create_recording(boss, run(ECHO))
    set_budgets(boss, helper, [BudgetLine("tokens", "month", 1)])
    made = played(recording)
    assert (made.status, made.error_code) == (Replay.Status.FAILED, "budget_exhausted")
    update_agent(boss, helper, AgentSpec(name="Helper", slug="helper", enabled=False))
    assert played(recording).error_code == "agent_disabled"


def test_sessions_that_cant_be_recorded_are_explained(
    boss, acme, helper, workshop, run, monkeypatch
):
    waiting, _ = factories.create_waiting_session(helper, "hello")
    with pytest.raises(Conflict) as busy:
        create_recording(boss, waiting)
    assert busy.value.code == "session_busy"
    session = run(ECHO)
    with pytest.raises(Forbidden):
        create_recording(factories.create_member(acme, Role.REVIEWER), session)
    monkeypatch.setattr("agents.evaluation.services.MAX_RECORDING_BYTES", 10)
    with pytest.raises(InvalidInput) as large:
        create_recording(boss, session)
    assert large.value.code == "recording_too_large"
    monkeypatch.undo()
    recording = create_recording(boss, session)
    with pytest.raises(Conflict) as twice:
        create_recording(boss, session)
    assert twice.value.code == "already_recorded"
    with pytest.raises(NotFound):
        create_replay(boss, recording, ReplayOverrides(endpoint="nothing"))
    with pytest.raises(InvalidInput):
        create_replay(
            boss, recording, ReplayOverrides(policy=PolicySpec("all", deny=("mcp_nothing_x",)))
        )
    monkeypatch.setattr("agents.evaluation.services.MAX_OPEN_REPLAYS", 1)
    create_replay(boss, recording, ReplayOverrides())
    with pytest.raises(Conflict) as many:
        create_replay(boss, recording, ReplayOverrides())
    assert many.value.code == "too_many_replays"
    delete_recording(boss, recording)
    assert not Recording.objects.exists()
    assert not Replay.objects.exists()
    actions = AuditRow.objects.values_list("action", flat=True)
    assert {"session_recorded", "recording_replayed", "recording_removed"} <= set(actions)


def test_masked_calls_are_matched_with_their_results(boss, workshop, run, played):
    token = "ghp_" + "a1B2" * 9
    recording = create_recording(boss, run(f'/mcp_workshop_echo {{"text": "{token}"}}'))
    assert token not in str(recording.conversation)
    made = played(recording)
    assert token not in str(made.conversation)
    assert "not_recorded" not in str(made.conversation)


def test_a_replay_of_a_dead_worker_is_restarted(boss, workshop, run, runner, played):
    made = create_replay(boss, create_recording(boss, run(ECHO)), ReplayOverrides())
    dead = Runner.objects.create(
        host="gone", pid=1, heartbeat_at=timezone.now() - timedelta(minutes=1)
    )
    held = evaluation.claim_replay(made.pk, dead.pk)
    assert held
    assert evaluation.list_stalled_replays() == [made.pk]
    get_runtime().call(replay_runner.run_replay, made.pk)
    made.refresh_from_db()
    assert (made.status, made.fence) == (Replay.Status.DONE, 2)
    evaluation.complete_replay(held, Transcript())
    made.refresh_from_db()
    assert made.conversation["exchanges"], "a stale holder writes nothing"
    assert evaluation.claim_replay(made.pk, dead.pk) is None
    assert evaluation.list_stalled_replays() == []


def test_the_schedule_starts_forgotten_replays(boss, workshop, run, monkeypatch):
    made = create_replay(boss, create_recording(boss, run(ECHO)), ReplayOverrides())
    Replay.objects.update(updated_at=timezone.now() - timedelta(minutes=1))
    nudged = []
    monkeypatch.setattr("agents.tasks.play_recording.delay", nudged.append)
    assert sweep() == 1
    assert nudged == [str(made.pk)]


def test_an_endless_replay_is_given_up(boss, workshop, run):
    made = create_replay(boss, create_recording(boss, run(ECHO)), ReplayOverrides())
    runner_id = leases.register_runner()
    Replay.objects.update(fence=evaluation.MAX_ATTEMPTS)
    assert evaluation.claim_replay(made.pk, runner_id) is None
    made.refresh_from_db()
    assert (made.status, made.error_code) == (Replay.Status.FAILED, "replay_lost")


def test_the_newest_results_are_kept(boss, workshop, run, played, monkeypatch):
    monkeypatch.setattr("agents.evaluation.services.MAX_FINISHED_REPLAYS", 2)
    recording = create_recording(boss, run("Hello"))
    made = [played(recording) for _ in range(3)]
    left = set(Replay.objects.values_list("pk", flat=True))
    assert left == {one.pk for one in made[1:]}
    assert ModelEndpoint.objects.count() == 1


def test_a_model_that_fails_ends_the_replay_with_its_code(
    boss, helper, workshop, run, take, played, fake
):
    session = run("Hello")
    sessions.send_message(boss, session, "And again")
    take(session)
    recording = create_recording(boss, session)
    spec = ModelEndpointSpec(
        name="Frail", kind="openai", base_url=fake.url, model="m", api_key="k", allow_private=True
    )
    frail = save_endpoint(boss, spec)
    fake.script += [Says(text="Hello."), Refuses(400, "no")]
    made = played(recording, endpoint=frail.slug)
    assert made.status == Replay.Status.DONE, made.error_detail
    ending = next(one for one in made.differences if one["kind"] == "ending_changed")
    assert (ending["message"], ending["before"], ending["after"]) == (2, "", "model_error")
    fake.script += [Refuses(400, "no")]
    first, second = Transcript.from_dict(
        played(recording, endpoint=frail.slug).conversation
    ).exchanges
    assert (first.code, second.code) == ("model_error", "not_told")
    failed = AuditRow.objects.filter(action="agent_evaluation", code="model_error")
    assert failed.count() == 2, "what was reserved is settled"
