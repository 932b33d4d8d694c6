"""Sessions with another model endpoint than their agent's."""

import json

import pytest

from agents.evaluation.recordings import create_recording
from agents.evaluation.replays import ReplayOverrides, create_replay, load_replay_context
from agents.model_endpoints.services import ModelEndpointSpec, delete_endpoint, save_endpoint
from agents.sessions import services as sessions
from agents.sessions.export import build_report
from agents.sessions.services import find_selectable_endpoint, list_selectable_endpoints
from bonobot.accounts.roles import Role
from bonobot.core.problems import Forbidden, NotFound
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.agents.llm.openai_server import Says


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def member(acme, helper):
    member = factories.create_member(acme, Role.MEMBER)
    helper.members.add(member.id)
    return member


@pytest.fixture
def create_endpoint(administrator):
    def create(name, **values):
        return save_endpoint(administrator, ModelEndpointSpec(name=name, kind="offline", **values))

    return create


def list_slugs(principal, agent):
    return {endpoint.slug for endpoint in list_selectable_endpoints(principal, agent)}


def test_members_choose_selectable_endpoints_and_operators_any(
    acme, helper, member, create_endpoint
):
    create_endpoint("Large")
    create_endpoint("Small", selectable=True)
    own = helper.model_endpoint.slug
    assert list_slugs(member, helper) == {own, "small"}
    operator = factories.create_member(acme, Role.OPERATOR)
    assert list_slugs(operator, helper) == {own, "small", "large"}
    assert find_selectable_endpoint(member, helper, "small").slug == "small"
    assert find_selectable_endpoint(member, helper, own).slug == own
    with pytest.raises(Forbidden) as caught:
        find_selectable_endpoint(member, helper, "large")
    assert caught.value.code == "model_not_selectable"
    assert "small" in str(caught.value.remedy)


def test_an_endpoint_of_another_organization_is_not_found(administrator, helper):
    other_organization = factories.create_organization("other")
    foreign = factories.create_agent(other_organization).model_endpoint
    with pytest.raises(NotFound) as caught:
        find_selectable_endpoint(administrator, helper, str(foreign.pk))
    assert caught.value.field == "model_endpoint"
    with pytest.raises(Forbidden):
        sessions.start_session(administrator, helper, "hello", model_endpoint=foreign)


def test_an_endpoint_that_is_no_longer_selectable_refuses_messages_of_members(
    administrator, member, helper, create_endpoint
):
    small = create_endpoint("Small", selectable=True)
    session = sessions.start_session(member, helper, "hello", model_endpoint=small)
    save_endpoint(administrator, ModelEndpointSpec(name="Small", kind="offline"), small)
    session.refresh_from_db()
    with pytest.raises(Forbidden):
        sessions.send_message(member, session, "again")
    with pytest.raises(Forbidden):
        sessions.resend_message(member, session)
    sessions.send_message(administrator, session, "again")


def test_the_chosen_endpoint_answers_every_message_with_its_fallbacks(
    administrator, helper, fake, run_to_rest, create_endpoint
):
    working = save_endpoint(
        administrator,
        ModelEndpointSpec(name="Working", base_url=fake.url, model="large", allow_private=True),
    )
    chosen = save_endpoint(
        administrator,
        ModelEndpointSpec(
            name="Chosen",
            base_url="http://127.0.0.1:9/v1",
            model="small",
            allow_private=True,
            retries=0,
            fallback=working,
        ),
    )
    fake.script = [Says("first"), Says("second")]
    session = sessions.start_session(administrator, helper, "hello", model_endpoint=chosen)
    assert run_to_rest(session) == "done"
    sessions.send_message(administrator, session, "again")
    assert run_to_rest(session) == "done"
    assert build_report(session.pk)["answer"] == "second"
    assert build_report(session.pk)["model_endpoint"] == "chosen"
    turns = AuditRow.objects.filter(action="agent_model_turn").order_by("seq")
    assert [row.resource_id for row in turns] == ["small", "large"] * 2
    [started] = AuditRow.objects.filter(action="session_started")
    assert json.loads(started.opened)["details"]["model_endpoint"] == "chosen"


def test_a_replay_uses_the_endpoint_of_the_session(
    administrator, helper, run_to_rest, create_endpoint
):
    small = create_endpoint("Small")
    session = sessions.start_session(administrator, helper, "hello", model_endpoint=small)
    run_to_rest(session)
    recording = create_recording(administrator, session)
    replay = create_replay(administrator, recording, ReplayOverrides())
    assert load_replay_context(replay.pk).endpoints[0].id == str(small.pk)


def test_the_agents_endpoint_is_used_after_the_chosen_one_was_deleted(
    administrator, helper, run_to_rest, create_endpoint
):
    small = create_endpoint("Small")
    session = sessions.start_session(administrator, helper, "hello", model_endpoint=small)
    delete_endpoint(administrator, small)
    assert run_to_rest(session) == "done"
    assert session.effective_endpoint == helper.model_endpoint
