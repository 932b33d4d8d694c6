"""The limits that a call in a child session shares with its root session."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.budgets.limits import BudgetLimit
from agents.budgets.services import BudgetLine, set_budgets
from agents.calls.root_limits import RootSession, load_root_limits, merge_limits
from bonobot.core.runtime import get_runtime
from tests import factories
from tests.agents.conftest import acme, helper

__all__ = ["acme", "helper"]

SESSION = UUID(int=9)
LIMITS = st.lists(
    st.builds(
        BudgetLimit,
        st.sampled_from(["agent", "session", "organization", "server"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["calls", "tokens"]),
        st.just("day"),
        st.integers(1, 2),
    )
).map(tuple)


@pytest.mark.django_db(transaction=True)
def test_the_root_session_spends_its_agents_and_its_own_budgets(acme, helper):
    administrator = factories.build_administrator(acme)
    set_budgets(administrator, acme, [BudgetLine("calls", "day", 9)])
    lines = [BudgetLine("calls", "total", 5), BudgetLine("tokens", "day", 7, each_session=True)]
    set_budgets(administrator, helper, lines)
    limits = get_runtime().call(load_root_limits, RootSession(SESSION, helper.pk))
    assert {(limit.scope, limit.scope_id, limit.unit, limit.limit) for limit in limits} == {
        ("agent", str(helper.pk), "calls", 5),
        ("session", str(SESSION), "tokens", 7),
    }
    assert get_runtime().call(load_root_limits, None) == ()


@given(LIMITS, LIMITS)
def test_every_limit_applies_once(own, root):
    merged = merge_limits(own, root)
    assert set(merged) == {*own, *root}
    assert len(merged) == len(set(merged))
