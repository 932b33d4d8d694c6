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


def test_labels_of_a_call_in_a_session_belong_to_the_session():
    for kind in ("token", "user"):
        (key,) = build_flow_keys(principal(kind), session_id=SESSION, agent_id=AGENT)
        assert str(SESSION) in key
        assert ":session:" in key


def test_without_a_session_labels_belong_to_the_token_and_agent():
    kinds = [key.split(":")[2] for key in build_flow_keys(principal(), agent_id=AGENT)]
    assert kinds == ["token", "agent"]
    assert len(build_flow_keys(principal())) == 1
    assert [key.split(":")[2] for key in build_flow_keys(principal("user"), agent_id=AGENT)] == [
        "agent"
    ]


def test_a_manual_call_of_a_person_keeps_no_labels():
    assert build_flow_keys(principal("user")) == ()
    assert build_flow_effects(principal("user"), list(FlowLabel)) == ()


def test_labels_outside_sessions_expire_after_a_day():
    (in_session,) = build_flow_effects(principal(), [FlowLabel.PRIVATE_DATA], session_id=SESSION)
    (of_token,) = build_flow_effects(principal(), [FlowLabel.PRIVATE_DATA])
    assert (in_session.idle_s, of_token.idle_s) == (None, IDLE_S)


@given(LABELS, WHERE, st.sampled_from(["token", "user"]))
def test_only_external_effects_are_denied_and_only_with_both_labels(labels, where, kind):
    for one in build_flow_effects(principal(kind), labels, **where):
        assert one.blocking_labels == (HELD_LABELS if FlowLabel.SENDS_OUT in labels else 0)
        assert one.added_labels == encode_labels(labels) & HELD_LABELS


@given(LABELS, LABELS, WHERE)
def test_an_additional_label_never_allows_more(labels, more, where):
    few = {one.key: one for one in build_flow_effects(principal(), labels, **where)}
    many = {one.key: one for one in build_flow_effects(principal(), labels | more, **where)}
    assert few.keys() <= many.keys()
    for key, one in few.items():
        assert one.added_labels & many[key].added_labels == one.added_labels
        assert one.blocking_labels & many[key].blocking_labels == one.blocking_labels


@given(WHERE)
def test_organizations_share_no_labels(where):
    here, there = principal(), principal(organization_id=THERE)
    assert not set(build_flow_keys(here, **where)) & set(build_flow_keys(there, **where))
