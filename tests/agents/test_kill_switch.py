"""Kill switches, with a session that runs, one that waits, and a real child."""

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
def boss(acme):
    return factories.create_member(acme, Role.OWNER)


@pytest.fixture
def fake(fake, acme, helper):
    """The model that the agent thinks with."""
    helper.model_endpoint = save_endpoint(
        factories.build_administrator(acme),
        ModelEndpointSpec(name="Fake", base_url=fake.url, model="house", allow_private=True),
    )
    helper.save()
    return fake


def refused(made, *args, **more) -> Problem:
    with pytest.raises(Problem) as caught:
        made(*args, **more)
    return caught.value


def children(server) -> bool:
    return server.pk in get_connection_pool()._stdio_pool.list_server_ids()


def test_the_kill_switch_denies_the_next_call_until_it_is_disabled(workshop, call, boss):
    assert call(ECHO, {"text": "x"}).text == "x"
    assert halt_organization(boss, "drill").halted_at is not None
    problem = refused(call, ECHO, {"text": "x"})
    assert (problem.code, problem.rule) == ("organization_halted", "organization:halted")
    without = {"agent_id": None, "server_id": workshop.pk, "principal": boss}
    assert refused(call, "echo", {"text": "x"}, **without).code == "organization_halted"
    resume_organization(boss)
    assert call(ECHO, {"text": "x"}).text == "x"


def test_the_kill_switch_closes_open_connections(workshop, call, boss):
    call(ECHO, {"text": "x"})
    assert children(workshop)
    halt_organization(boss)
    eventually(lambda: not children(workshop), what="the child's end")


def test_a_running_session_is_canceled_with_the_reason(acme, helper, fake, runner, boss):
    session = sessions.start_session(boss, helper, "hello")
    fake.script.append(Waits())
    get_runtime().call(runner.claim_and_run, session.pk)
    eventually(lambda: fake.requests, within=30, what="the model's turn")
    assert load_impact(acme).running == 1
    halt_organization(boss, "Leaked key.")
    eventually(lambda: Session.objects.get().status == "cancelled", what="the end")
    found = Session.objects.get()
    assert (found.error_code, "Leaked key." in found.error_detail) == ("cancelled", True)
    end = found.steps.get(kind=Step.Kind.END)
    assert "Leaked key." in end.payload["detail"]


def test_a_waiting_session_is_canceled(acme, helper, workshop, take, boss):
    set_policy(boss, helper, PolicySpec("all", ask=(ECHO,)))
    session = sessions.start_session(boss, helper, f'/{ECHO} {{"text": "x"}}')
    assert take(session) == Session.Status.WAITING
    assert load_impact(acme) == KillSwitchImpact(running=0, waiting=1, agents=1, servers=1)
    halt_organization(boss)
    assert take(session) == Session.Status.CANCELLED
    assert Approval.objects.get().state == Approval.State.WITHDRAWN


def test_a_queued_session_ends_immediately(acme, helper, boss):
    session = sessions.start_session(boss, helper, "hello")
    halt_organization(boss, "drill")
    session.refresh_from_db()
    assert (session.status, "drill" in session.error_detail) == ("cancelled", True)


def test_no_session_starts_while_the_kill_switch_is_enabled(helper, take, boss):
    session = sessions.start_session(boss, helper, "hello")
    take(session)
    halt_organization(boss)
    helper.organization.refresh_from_db()
    assert refused(sessions.start_session, boss, helper, "hello").code == "organization_halted"
    session = Session.objects.get()
    assert refused(sessions.send_message, boss, session, "more").code == "organization_halted"


def test_no_model_is_requested_while_the_kill_switch_is_enabled(helper, fake, take, boss):
    session = sessions.start_session(boss, helper, "hello")
    helper.organization.halted_at = "2026-01-01T00:00:00Z"
    helper.organization.save()
    assert take(session) == Session.Status.FAILED
    assert session.error_code == "organization_halted"
    assert not fake.requests
    row = AuditRow.objects.get(action="agent_model_turn")
    assert (row.decision, row.code) == ("deny", "organization_halted")


def test_a_kill_switch_enabled_at_the_start_of_a_turn_applies(
    helper, fake, take, boss, monkeypatch
):
    session = sessions.start_session(boss, helper, "hello")
    fake.script += [Says("never")]

    def reserve_late(*args, reserves=request_budget.build_reservations):
        halt_organization(boss)
        return reserves(*args)

    monkeypatch.setattr(request_budget, "build_reservations", reserve_late)
    assert take(session) in (Session.Status.FAILED, Session.Status.CANCELLED)
    assert not fake.requests


def test_disabling_an_agent_ends_only_its_sessions(acme, helper, boss):
    other = factories.create_agent(acme, "other")
    sessions.start_session(boss, helper, "hello")
    sessions.start_session(boss, other, "hello")
    update_agent(boss, helper, AgentSpec(name=helper.name, enabled=False))
    stand = dict(Session.objects.values_list("agent__slug", "status"))
    assert stand == {"helper": "cancelled", "other": "queued"}
    assert refused(sessions.start_session, boss, helper, "hello").code == "agent_disabled"


def test_disabling_a_server_closes_its_processes(workshop, call, boss):
    call(ECHO, {"text": "x"})
    set_server_enabled(boss, workshop, enabled=False)
    eventually(lambda: not children(workshop), what="the child's end")
    assert refused(call, ECHO, {"text": "x"}).code == "server_disabled"


def test_a_server_disabled_by_another_process_is_closed_here_too(workshop, call):
    call(ECHO, {"text": "x"})
    get_runtime().call(get_connection_pool().close_outdated_connections)
    assert children(workshop)
    Server.objects.filter(pk=workshop.pk).update(enabled=False)
    get_runtime().call(get_connection_pool().close_outdated_connections)
    assert not children(workshop)


def test_disabling_a_server_affects_sessions_of_its_agents(acme, helper, workshop, boss):
    other = factories.create_agent(acme, "other")
    sessions.start_session(boss, helper, "hello")
    sessions.start_session(boss, other, "hello")
    assert load_impact(workshop) == KillSwitchImpact(running=1, waiting=0, agents=1, servers=1)
    assert load_impact(helper) == KillSwitchImpact(running=1, waiting=0, agents=1, servers=1)
    assert load_impact(acme) == KillSwitchImpact(running=2, waiting=0, agents=2, servers=1)


def test_enabling_the_kill_switch_twice_is_one_change(acme, helper, boss):
    halt_organization(boss)
    Session.objects.create(
        organization=acme, agent=helper, started_by_kind="user", started_by_id="1", started_by="x"
    )
    halt_organization(boss)
    assert Session.objects.get().status == Session.Status.CANCELLED
    resume_organization(boss)
    resume_organization(boss)
    actions = AuditRow.objects.filter(resource_type="organization").values_list("action", flat=True)
    assert sorted(actions) == ["organization_halted", "organization_resumed"]


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.REVIEWER, Role.AUDITOR, Role.MEMBER])
def test_only_owners_can_use_the_kill_switch(acme, role):
    somebody = factories.create_member(acme, role)
    assert refused(halt_organization, somebody).code == "forbidden"
    assert refused(resume_organization, somebody).code == "forbidden"


def test_other_organizations_arent_affected(acme, helper, boss):
    theirs = factories.create_agent(factories.create_organization("other"))
    session = sessions.start_session(
        factories.build_administrator(theirs.organization), theirs, "hello"
    )
    halt_organization(boss)
    session.refresh_from_db()
    assert session.status == Session.Status.QUEUED


def test_idle_sessions_arent_affected(helper, take, boss):
    session = sessions.start_session(boss, helper, "hello")
    take(session)
    assert sessions.cancel_sessions(boss, Session.objects.all(), "why") == 0
    session.refresh_from_db()
    assert session.status == Session.Status.DONE
