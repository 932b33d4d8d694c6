"""What a call does to what its caller has seen, and when it needs a person's yes."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agents.flow_labels.rules import HELD_LABELS, IDLE_S, build_flow_effects, build_flow_keys
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from mcp_servers.flow_labels import FlowLabel, encode_labels

SESSION, AGENT, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)
HERE, THERE = UUID(int=7), UUID(int=8)
LABELS = st.sets(st.sampled_from(list(FlowLabel)))
WHERE = st.fixed_dictionaries(
    {},
    optional={"session_id": st.just(SESSION), "agent_id": st.sampled_from([AGENT, OTHER])},
)


def principal(kind="token", organization_id=HERE):
    return Principal(
        kind=kind, id="t1", label="one", organization_id=organization_id, role=Role.MEMBER
    )


def test_a_call_in_a_session_is_the_sessions_whoever_calls():
    for kind in ("token", "user"):
        (key,) = build_flow_keys(principal(kind), session_id=SESSION, agent_id=AGENT)
        assert str(SESSION) in key
        assert ":session:" in key


def test_without_a_session_the_token_and_the_agent_hold_what_was_seen():
    kinds = [key.split(":")[2] for key in build_flow_keys(principal(), agent_id=AGENT)]
    assert kinds == ["token", "agent"]
    assert len(build_flow_keys(principal())) == 1
    assert [key.split(":")[2] for key in build_flow_keys(principal("user"), agent_id=AGENT)] == [
        "agent"
    ]


def test_a_person_who_calls_by_hand_holds_nothing():
    assert build_flow_keys(principal("user")) == ()
    assert build_flow_effects(principal("user"), list(FlowLabel)) == ()


def test_what_is_held_outside_of_sessions_is_forgotten_after_a_day():
    (in_session,) = build_flow_effects(principal(), [FlowLabel.PRIVATE_DATA], session_id=SESSION)
    (of_token,) = build_flow_effects(principal(), [FlowLabel.PRIVATE_DATA])
    assert (in_session.idle_s, of_token.idle_s) == (None, IDLE_S)


@given(LABELS, WHERE, st.sampled_from(["token", "user"]))
def test_only_what_sends_out_is_barred_and_only_by_both(labels, where, kind):
    for one in build_flow_effects(principal(kind), labels, **where):
        assert one.blocking_labels == (HELD_LABELS if FlowLabel.SENDS_OUT in labels else 0)
        assert one.added_labels == encode_labels(labels) & HELD_LABELS


@given(LABELS, LABELS, WHERE)
def test_a_further_label_never_lets_more_through(labels, more, where):
    few = {one.key: one for one in build_flow_effects(principal(), labels, **where)}
    many = {one.key: one for one in build_flow_effects(principal(), labels | more, **where)}
    assert few.keys() <= many.keys()
    for key, one in few.items():
        assert one.added_labels & many[key].added_labels == one.added_labels
        assert one.blocking_labels & many[key].blocking_labels == one.blocking_labels


@given(WHERE)
def test_organizations_hold_nothing_together(where):
    here, there = principal(), principal(organization_id=THERE)
    assert not set(build_flow_keys(here, **where)) & set(build_flow_keys(there, **where))
