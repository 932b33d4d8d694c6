"""Kill switches with running and waiting sessions, and real child processes."""

import pytest

from agents.kill_switch import KillSwitchImpact, halt_organization, load_impact, resume_organization
from agents.model_endpoints import request_budget
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Approval, Session, Step
from agents.policies.services import PolicySpec, set_policy
from agents.services import AgentSpec, update_agent
from agents.sessions import services as sessions
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from mcp_servers.services import set_server_enabled
from tests import factories
from tests.agents.llm.openai_server import Says, Waits
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

ECHO = "mcp_workshop_echo"


@pytest.fixture
def owner(acme):
    return factories.create_member(acme, Role.OWNER)


@pytest.fixture
def fake(fake, acme, helper):
    """The server of the agent's model endpoint."""
    helper.model_endpoint = save_endpoint(
        factories.build_administrator(acme),
        ModelEndpointSpec(name="Fake", base_url=fake.url, model="house", allow_private=True),
    )
    helper.save()
    return fake


def expect_problem(function, *args, **more) -> Problem:
    with pytest.raises(Problem) as caught:
        function(*args, **more)
    return caught.value


def has_processes(server) -> bool:
    return server.pk in get_connection_pool()._stdio_pool.list_server_ids()


def test_the_kill_switch_denies_the_next_call_until_it_is_disabled(workshop, call, owner):
    assert call(ECHO, {"text": "x"}).text == "x"
    assert halt_organization(owner, "drill").halted_at is not None
    problem = expect_problem(call, ECHO, {"text": "x"})
    assert (problem.code, problem.rule) == ("kill_switch_enabled", "organization:halted")
    without_agent = {"agent_id": None, "server_id": workshop.pk, "principal": owner}
    assert (
        expect_problem(call, "echo", {"text": "x"}, **without_agent).code == "kill_switch_enabled"
    )
    resume_organization(owner)
    assert call(ECHO, {"text": "x"}).text == "x"


def test_the_kill_switch_closes_open_connections(workshop, call, owner):
    call(ECHO, {"text": "x"})
    assert has_processes(workshop)
    halt_organization(owner)
    eventually(lambda: not has_processes(workshop), what="the end of the child")


def test_a_running_session_is_canceled_with_the_reason(acme, helper, fake, runner, owner):
    session = sessions.start_session(owner, helper, "hello")
    fake.script.append(Waits())
    get_runtime().call(runner.claim_and_run, session.pk)
    eventually(lambda: fake.requests, within=30, what="the model's turn")
    assert load_impact(acme).running_sessions == 1
    halt_organization(owner, "Leaked key.")
    eventually(lambda: Session.objects.get().status == "cancelled", what="the end")
    canceled = Session.objects.get()
    assert (canceled.error_code, "Leaked key." in canceled.error_detail) == ("cancelled", True)
    end = canceled.steps.get(kind=Step.Kind.END)
    assert "Leaked key." in end.payload["detail"]


def test_a_waiting_session_is_canceled(acme, helper, workshop, run_to_rest, owner):
    set_policy(owner, helper, PolicySpec("all", ask=(ECHO,)))
    session = sessions.start_session(owner, helper, f'/{ECHO} {{"text": "x"}}')
    assert run_to_rest(session) == Session.Status.WAITING
    assert load_impact(acme) == KillSwitchImpact(
        running_sessions=0, waiting_sessions=1, agents=1, servers=1
    )
    halt_organization(owner)
    assert run_to_rest(session) == Session.Status.CANCELLED
    assert Approval.objects.get().state == Approval.State.WITHDRAWN


def test_a_queued_session_ends_immediately(acme, helper, owner):
    session = sessions.start_session(owner, helper, "hello")
    halt_organization(owner, "drill")
    session.refresh_from_db()
    assert (session.status, "drill" in session.error_detail) == ("cancelled", True)


def test_no_session_starts_while_the_kill_switch_is_enabled(helper, run_to_rest, owner):
    session = sessions.start_session(owner, helper, "hello")
    run_to_rest(session)
    halt_organization(owner)
    helper.organization.refresh_from_db()
    assert (
        expect_problem(sessions.start_session, owner, helper, "hello").code == "kill_switch_enabled"
    )
    session = Session.objects.get()
    assert (
        expect_problem(sessions.send_message, owner, session, "more").code == "kill_switch_enabled"
    )


def test_no_model_is_requested_while_the_kill_switch_is_enabled(helper, fake, run_to_rest, owner):
    session = sessions.start_session(owner, helper, "hello")
    helper.organization.halted_at = "2026-01-01T00:00:00Z"
    helper.organization.save()
    assert run_to_rest(session) == Session.Status.FAILED
    assert session.error_code == "kill_switch_enabled"
    assert not fake.requests
    row = AuditRow.objects.get(action="agent_model_turn")
    assert (row.decision, row.code) == ("deny", "kill_switch_enabled")


def test_a_kill_switch_enabled_at_the_start_of_a_turn_applies(
    helper, fake, run_to_rest, owner, monkeypatch
):
    session = sessions.start_session(owner, helper, "hello")
    fake.script += [Says("never")]

    def reserve_late(*args, reserves=request_budget.build_reservations):
        halt_organization(owner)
        return reserves(*args)

    monkeypatch.setattr(request_budget, "build_reservations", reserve_late)
    assert run_to_rest(session) in (Session.Status.FAILED, Session.Status.CANCELLED)
    assert not fake.requests


def test_disabling_an_agent_ends_only_its_sessions(acme, helper, owner):
    other_agent = factories.create_agent(acme, "other")
    sessions.start_session(owner, helper, "hello")
    sessions.start_session(owner, other_agent, "hello")
    update_agent(owner, helper, AgentSpec(name=helper.name, enabled=False))
    statuses = dict(Session.objects.values_list("agent__slug", "status"))
    assert statuses == {"helper": "cancelled", "other": "queued"}
    assert expect_problem(sessions.start_session, owner, helper, "hello").code == "agent_disabled"


def test_disabling_a_server_closes_its_processes(workshop, call, owner):
    call(ECHO, {"text": "x"})
    set_server_enabled(owner, workshop, enabled=False)
    eventually(lambda: not has_processes(workshop), what="the end of the child")
    assert expect_problem(call, ECHO, {"text": "x"}).code == "server_disabled"


def test_a_server_disabled_by_another_process_is_closed_here_too(workshop, call):
    call(ECHO, {"text": "x"})
    get_runtime().call(get_connection_pool().close_outdated_connections)
    assert has_processes(workshop)
    Server.objects.filter(pk=workshop.pk).update(enabled=False)
    get_runtime().call(get_connection_pool().close_outdated_connections)
    assert not has_processes(workshop)


def test_disabling_a_server_affects_sessions_of_its_agents(acme, helper, workshop, owner):
    other_agent = factories.create_agent(acme, "other")
    sessions.start_session(owner, helper, "hello")
    sessions.start_session(owner, other_agent, "hello")
    assert load_impact(workshop) == KillSwitchImpact(
        running_sessions=1, waiting_sessions=0, agents=1, servers=1
    )
    assert load_impact(helper) == KillSwitchImpact(
        running_sessions=1, waiting_sessions=0, agents=1, servers=1
    )
    assert load_impact(acme) == KillSwitchImpact(
        running_sessions=2, waiting_sessions=0, agents=2, servers=1
    )


def test_enabling_the_kill_switch_twice_is_one_change(acme, helper, owner):
    halt_organization(owner)
    Session.objects.create(
        organization=acme, agent=helper, started_by_kind="user", started_by_id="1", started_by="x"
    )
    halt_organization(owner)
    assert Session.objects.get().status == Session.Status.CANCELLED
    resume_organization(owner)
    resume_organization(owner)
    actions = AuditRow.objects.filter(resource_type="organization").values_list("action", flat=True)
    assert sorted(actions) == ["kill_switch_disabled", "kill_switch_enabled"]


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.REVIEWER, Role.AUDITOR, Role.MEMBER])
def test_only_owners_can_use_the_kill_switch(acme, role):
    member = factories.create_member(acme, role)
    assert expect_problem(halt_organization, member).code == "forbidden"
    assert expect_problem(resume_organization, member).code == "forbidden"


def test_other_organizations_arent_affected(acme, helper, owner):
    foreign_agent = factories.create_agent(factories.create_organization("other"))
    session = sessions.start_session(
        factories.build_administrator(foreign_agent.organization), foreign_agent, "hello"
    )
    halt_organization(owner)
    session.refresh_from_db()
    assert session.status == Session.Status.QUEUED


def test_idle_sessions_arent_affected(helper, run_to_rest, owner):
    session = sessions.start_session(owner, helper, "hello")
    run_to_rest(session)
    assert sessions.cancel_sessions(owner, Session.objects.all(), "why") == 0
    session.refresh_from_db()
    assert session.status == Session.Status.DONE
