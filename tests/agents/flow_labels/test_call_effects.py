"""Flow labels of calls: which labels they add, and when they are denied."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agents.flow_labels.call_effects import HELD_LABELS, IDLE_S, build_flow_effects, build_flow_keys
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from mcp_servers.flow_labels import FlowLabel, encode_labels

SESSION, AGENT, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)
ORGANIZATION, OTHER_ORGANIZATION = UUID(int=7), UUID(int=8)
LABELS = st.sets(st.sampled_from(list(FlowLabel)))
CONTEXTS = st.fixed_dictionaries(
    {},
    optional={"session_id": st.just(SESSION), "agent_id": st.sampled_from([AGENT, OTHER])},
)


def build_principal(kind="token", organization_id=ORGANIZATION):
    return Principal(
        kind=kind, id="t1", label="one", organization_id=organization_id, role=Role.MEMBER
    )


def test_labels_of_a_call_in_a_session_belong_to_the_session():
    for kind in ("token", "user"):
        (key,) = build_flow_keys(build_principal(kind), session_id=SESSION, agent_id=AGENT)
        assert str(SESSION) in key
        assert ":session:" in key


def test_without_a_session_labels_belong_to_the_token_and_agent():
    kinds = [key.split(":")[2] for key in build_flow_keys(build_principal(), agent_id=AGENT)]
    assert kinds == ["token", "agent"]
    assert len(build_flow_keys(build_principal())) == 1
    assert [
        key.split(":")[2] for key in build_flow_keys(build_principal("user"), agent_id=AGENT)
    ] == ["agent"]


def test_manual_calls_of_people_store_no_labels():
    assert build_flow_keys(build_principal("user")) == ()
    assert build_flow_effects(build_principal("user"), list(FlowLabel)) == ()


def test_labels_outside_sessions_expire_after_a_day():
    (in_session,) = build_flow_effects(
        build_principal(), [FlowLabel.PRIVATE_DATA], session_id=SESSION
    )
    (of_token,) = build_flow_effects(build_principal(), [FlowLabel.PRIVATE_DATA])
    assert (in_session.idle_s, of_token.idle_s) == (None, IDLE_S)


@given(LABELS, CONTEXTS, st.sampled_from(["token", "user"]))
def test_only_external_effects_are_denied_and_only_with_both_labels(labels, context, kind):
    for effect in build_flow_effects(build_principal(kind), labels, **context):
        assert effect.blocking_labels == (HELD_LABELS if FlowLabel.SENDS_OUT in labels else 0)
        assert effect.added_labels == encode_labels(labels) & HELD_LABELS


@given(LABELS, LABELS, CONTEXTS)
def test_an_additional_label_never_allows_more(labels, more, context):
    effects = {
        effect.key: effect for effect in build_flow_effects(build_principal(), labels, **context)
    }
    more_effects = {
        effect.key: effect
        for effect in build_flow_effects(build_principal(), labels | more, **context)
    }
    assert effects.keys() <= more_effects.keys()
    for key, effect in effects.items():
        assert effect.added_labels & more_effects[key].added_labels == effect.added_labels
        assert effect.blocking_labels & more_effects[key].blocking_labels == effect.blocking_labels


@given(CONTEXTS)
def test_organizations_share_no_labels(context):
    own, other_principal = build_principal(), build_principal(organization_id=OTHER_ORGANIZATION)
    assert not set(build_flow_keys(own, **context)) & set(
        build_flow_keys(other_principal, **context)
    )
