"""Recordings and replays with the offline model; replays must never call the real server."""

from datetime import timedelta

import pytest
from django.utils import timezone

from agents.budgets.services import BudgetLine, set_budgets
from agents.evaluation import replays
from agents.evaluation.compare_transcripts import Transcript
from agents.evaluation.recordings import create_recording, delete_recording
from agents.evaluation.replays import ReplayOverrides, create_replay
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
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def run_replay(runner, administrator):
    """Return a function that runs a replay of a recording until it completes."""

    def go(recording, **changed):
        replay = create_replay(administrator, recording, ReplayOverrides(**changed))
        get_runtime().call(replays.run_replay, replay.pk)
        return Replay.objects.select_related("recording").get(pk=replay.pk)

    return go


def list_difference_kinds(replay):
    return [difference["kind"] for difference in replay.differences]


def get_calls(replay):
    return Transcript.from_dict(replay.conversation).calls


def test_an_unchanged_replay_is_identical_and_contacts_no_server(
    administrator, acme, workshop, effects, run, run_replay
):
    session = run(f"{ECHO}\n{MARK}")
    before = effects.read_text()
    recording = create_recording(administrator, session)
    assert (recording.turns, recording.calls, recording.title) == (2, 2, session.title)
    session.delete()
    replay = run_replay(recording)
    assert replay.status == Replay.Status.DONE, replay.error_detail
    assert replay.differences == []
    assert replay.differs is False
    assert replay.tokens == recording.tokens > 0
    again = run_replay(recording)
    assert (
        again.conversation["exchanges"][0]["turns"] == replay.conversation["exchanges"][0]["turns"]
    )
    assert effects.read_text() == before == "x\n", "no server was called"
    rows = AuditRow.objects.filter(action="agent_evaluation")
    assert rows.count() == 4
    assert set(rows.values_list("outcome", flat=True)) == {"ok"}
    assert AuditRow.objects.filter(action="agent_tool_call").count() == 2, (
        "only the session's calls"
    )
    assert not Session.objects.exists()


def test_denials_of_a_changed_policy_are_differences(
    administrator, helper, workshop, run, run_replay
):
    recording = create_recording(administrator, run(ECHO))
    denied = run_replay(recording, policy=PolicySpec("denylist", deny=("mcp_workshop_echo",)))
    difference = denied.differences[0]
    assert (difference["kind"], difference["before"], difference["after"]) == (
        "decision_changed",
        "allow",
        "deny",
    )
    assert get_calls(denied)[0].code == "denied_by_policy"
    approved = run_replay(recording, policy=PolicySpec("all", ask=("mcp_workshop_echo",)))
    assert list_difference_kinds(approved) == ["decision_changed"], (
        "the replay treats the approval as approved"
    )
    assert get_calls(approved)[0].text == get_calls(run_replay(recording))[0].text
    helper.refresh_from_db()
    assert helper.tool_policy.mode == "all"
    assert not helper.tool_policy.rules.exists()


def test_a_denied_call_has_no_result(administrator, helper, workshop, run, run_replay):
    set_policy(administrator, helper, PolicySpec("denylist", deny=("mcp_workshop_echo",)))
    recording = create_recording(administrator, run(ECHO))
    assert run_replay(recording).differences == []
    allowed = run_replay(recording, policy=PolicySpec("all"))
    assert get_calls(allowed)[0].code == "not_recorded"
    assert allowed.differences[0]["code"] == "not_recorded"
    assert (allowed.differences[0]["before"], allowed.differences[0]["after"]) == ("deny", "allow")


def test_changed_instructions_and_models_are_used(
    administrator, helper, workshop, run, run_replay, fake
):
    recording = create_recording(administrator, run(ECHO))
    other_endpoint = save_endpoint(
        administrator,
        ModelEndpointSpec(
            name="Other", kind="openai", base_url=fake.url, model="m", api_key="k",
            allow_private=True,
        ),
    )  # fmt: skip
    tool_calls = (("c1", "mcp_workshop_echo", '{"text": "other"}'),)
    fake.script += [Says(calls=tool_calls), Says(text="All done.")]
    replay = run_replay(recording, instructions="Be brief.", endpoint=other_endpoint.slug)
    assert replay.status == Replay.Status.DONE, replay.error_detail
    assert list_difference_kinds(replay) == ["arguments_changed", "answer_changed"]
    assert replay.differences[0]["code"] == "not_recorded"
    assert fake.read(0).system.startswith("Be brief.")
    assert replay.changed == {"instructions": "Be brief.", "endpoint": other_endpoint.slug}
    helper.refresh_from_db()
    assert helper.instructions != "Be brief."


def test_a_replay_spends_within_the_agents_budget(administrator, helper, workshop, run, run_replay):
    recording = create_recording(administrator, run(ECHO))
    set_budgets(administrator, helper, [BudgetLine("tokens", "month", 1)])
    replay = run_replay(recording)
    assert (replay.status, replay.error_code) == (Replay.Status.FAILED, "budget_exhausted")
    update_agent(administrator, helper, AgentSpec(name="Helper", slug="helper", enabled=False))
    assert run_replay(recording).error_code == "agent_disabled"


def test_recording_errors_say_why(administrator, acme, helper, workshop, run, monkeypatch):
    waiting, _ = factories.create_waiting_session(helper, "hello")
    with pytest.raises(Conflict) as busy:
        create_recording(administrator, waiting)
    assert busy.value.code == "session_busy"
    session = run(ECHO)
    with pytest.raises(Forbidden):
        create_recording(factories.create_member(acme, Role.REVIEWER), session)
    monkeypatch.setattr("agents.evaluation.recordings.MAX_RECORDING_BYTES", 10)
    with pytest.raises(InvalidInput) as too_large:
        create_recording(administrator, session)
    assert too_large.value.code == "recording_too_large"
    monkeypatch.undo()
    recording = create_recording(administrator, session)
    with pytest.raises(Conflict) as twice:
        create_recording(administrator, session)
    assert twice.value.code == "already_recorded"
    with pytest.raises(NotFound):
        create_replay(administrator, recording, ReplayOverrides(endpoint="nothing"))
    with pytest.raises(InvalidInput):
        create_replay(
            administrator,
            recording,
            ReplayOverrides(policy=PolicySpec("all", deny=("mcp_nothing_x",))),
        )
    monkeypatch.setattr("agents.evaluation.replays.MAX_OPEN_REPLAYS", 1)
    create_replay(administrator, recording, ReplayOverrides())
    with pytest.raises(Conflict) as too_many:
        create_replay(administrator, recording, ReplayOverrides())
    assert too_many.value.code == "too_many_replays"
    delete_recording(administrator, recording)
    assert not Recording.objects.exists()
    assert not Replay.objects.exists()
    actions = AuditRow.objects.values_list("action", flat=True)
    assert {"session_recorded", "recording_replayed", "recording_deleted"} <= set(actions)


def test_masked_calls_are_matched_with_their_results(administrator, workshop, run, run_replay):
    token = "ghp_" + "a1B2" * 9
    recording = create_recording(administrator, run(f'/mcp_workshop_echo {{"text": "{token}"}}'))
    assert token not in str(recording.conversation)
    replay = run_replay(recording)
    assert token not in str(replay.conversation)
    assert "not_recorded" not in str(replay.conversation)


def test_a_replay_of_a_dead_worker_is_restarted(administrator, workshop, run, runner, run_replay):
    replay = create_replay(
        administrator, create_recording(administrator, run(ECHO)), ReplayOverrides()
    )
    dead_runner = Runner.objects.create(
        host="gone", pid=1, heartbeat_at=timezone.now() - timedelta(minutes=1)
    )
    claim = replays.claim_replay(replay.pk, dead_runner.pk)
    assert claim
    assert replays.list_stalled_replays() == [replay.pk]
    get_runtime().call(replays.run_replay, replay.pk)
    replay.refresh_from_db()
    assert (replay.status, replay.fence) == (Replay.Status.DONE, 2)
    replays.complete_replay(claim, Transcript())
    replay.refresh_from_db()
    assert replay.conversation["exchanges"], "a stale claim writes nothing"
    assert replays.claim_replay(replay.pk, dead_runner.pk) is None
    assert replays.list_stalled_replays() == []


def test_the_schedule_starts_forgotten_replays(administrator, workshop, run, monkeypatch):
    replay = create_replay(
        administrator, create_recording(administrator, run(ECHO)), ReplayOverrides()
    )
    Replay.objects.update(updated_at=timezone.now() - timedelta(minutes=1))
    enqueued = []
    monkeypatch.setattr("agents.tasks.run_replay.delay", enqueued.append)
    assert sweep() == 1
    assert enqueued == [str(replay.pk)]


def test_a_replay_fails_after_too_many_attempts(administrator, workshop, run):
    replay = create_replay(
        administrator, create_recording(administrator, run(ECHO)), ReplayOverrides()
    )
    runner_id = leases.register_runner()
    Replay.objects.update(fence=replays.MAX_ATTEMPTS)
    assert replays.claim_replay(replay.pk, runner_id) is None
    replay.refresh_from_db()
    assert (replay.status, replay.error_code) == (Replay.Status.FAILED, "replay_lost")


def test_the_newest_results_are_kept(administrator, workshop, run, run_replay, monkeypatch):
    monkeypatch.setattr("agents.evaluation.replays.MAX_FINISHED_REPLAYS", 2)
    recording = create_recording(administrator, run("Hello"))
    replays = [run_replay(recording) for _ in range(3)]
    remaining = set(Replay.objects.values_list("pk", flat=True))
    assert remaining == {replay.pk for replay in replays[1:]}
    assert ModelEndpoint.objects.count() == 1


def test_a_model_that_fails_ends_the_replay_with_its_code(
    administrator, helper, workshop, run, run_to_rest, run_replay, fake
):
    session = run("Hello")
    sessions.send_message(administrator, session, "And again")
    run_to_rest(session)
    recording = create_recording(administrator, session)
    spec = ModelEndpointSpec(
        name="Frail", kind="openai", base_url=fake.url, model="m", api_key="k", allow_private=True
    )
    failing_endpoint = save_endpoint(administrator, spec)
    fake.script += [Says(text="Hello."), Refuses(400, "no")]
    replay = run_replay(recording, endpoint=failing_endpoint.slug)
    assert replay.status == Replay.Status.DONE, replay.error_detail
    ending = next(
        difference for difference in replay.differences if difference["kind"] == "ending_changed"
    )
    assert (ending["message"], ending["before"], ending["after"]) == (2, "", "model_error")
    fake.script += [Refuses(400, "no")]
    first, second = Transcript.from_dict(
        run_replay(recording, endpoint=failing_endpoint.slug).conversation
    ).exchanges
    assert (first.code, second.code) == ("model_error", "not_told")
    failed = AuditRow.objects.filter(action="agent_evaluation", code="model_error")
    assert failed.count() == 2, "reserved budget is settled"
