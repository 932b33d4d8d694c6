from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from bonobot.ledger.admission import (
    ApprovalRefused,
    BudgetExhausted,
    BudgetReserved,
    CallerFlowLabels,
    FlowNeedsApproval,
    RateLimited,
    StaleSnapshot,
    StoredApproval,
)
from bonobot.ledger.audit.hash_chain import ChainTip
from bonobot.ledger.budgets import BudgetBalance
from bonobot.ledger.types import (
    Admission,
    AdmissionResult,
    ApprovalReference,
    BudgetReservation,
    FlowLabelEffect,
    RateCharge,
    Settlement,
)
from bonobot.ledger.writer.batch_plan import (
    BatchRowKeys,
    BatchState,
    CloseItem,
    Item,
    OpenItem,
    build_close_item,
    build_open_item,
    collect_row_keys,
    decide_batch,
)
from tests.bonobot.ledger.factories import opening_of

AT = datetime(2026, 11, 21, tzinfo=UTC)
ORGANIZATION, OTHER = UUID(int=1), UUID(int=2)
NOW = 1_000_000_000
SECOND = 1_000_000


def build_state(items: Sequence[Item], **tips: int) -> BatchState:
    keys = collect_row_keys(items)
    return BatchState(
        tips={
            organization: ChainTip(generation=tips.get("generation", 0))
            for organization in keys.organizations
        },
        cells={key: BudgetBalance() for key, _ in keys.cells},
        rates=dict.fromkeys(keys.rates, 0),
        open_calls={},
        now=NOW,
        flows={key: CallerFlowLabels() for key, _ in keys.flows},
    )


def build_admission(
    *reserves: BudgetReservation,
    charges: tuple[RateCharge, ...] = (),
    generation: int | None = None,
    organization: UUID = ORGANIZATION,
    flows: tuple[FlowLabelEffect, ...] = (),
    approval: ApprovalReference | None = None,
) -> OpenItem:
    admission = Admission(opening_of(organization), reserves, charges, generation, flows, approval)
    return build_open_item(admission.opening, AT, admission=admission, generation=generation)


def build_settlement(call: OpenItem, *actuals: tuple[str, int, int]) -> CloseItem:
    return build_close_item(
        Settlement(
            call_id=call.call_id,
            organization_id=call.organization_id,
            outcome="ok",
            duration_ms=1,
            actuals=actuals,
        ),
        AT,
    )


def test_rows_are_locked_in_the_order_of_their_keys() -> None:
    items = [
        build_admission(
            BudgetReservation("budget:b", 1, 1),
            charges=(RateCharge("rate:b", 1, 1),),
            organization=OTHER,
        ),
        build_admission(BudgetReservation("budget:a", 1, 1), charges=(RateCharge("rate:a", 1, 1),)),
    ]
    assert collect_row_keys(items) == BatchRowKeys(
        organizations=(ORGANIZATION, OTHER),
        cells=(("budget:a", ORGANIZATION), ("budget:b", OTHER)),
        rates=("rate:a", "rate:b"),
        closing_calls=(),
    )


def test_a_batch_gives_each_entry_one_position_in_the_chain() -> None:
    first, second = build_admission(), build_admission()
    items = [first, second, build_settlement(first), build_admission(organization=OTHER)]
    plan = decide_batch(build_state(items), items)
    assert [entry.seq for entry in plan.opened] == [1, 2, 1]
    assert [entry.seq for entry in plan.closed] == [3]
    tip = ChainTip().extend(first.text).extend(second.text).extend(items[2].text)
    assert plan.state.tips[ORGANIZATION] == tip
    assert plan.closed[0].digest == tip.digest


def test_the_state_that_was_read_isnt_modified() -> None:
    items = [
        build_admission(
            BudgetReservation("budget:x", 10, 7), charges=(RateCharge("rate:x", 60, 1),)
        )
    ]
    before = build_state(items)
    decide_batch(before, items)
    assert before == build_state(items)


def test_a_call_can_be_opened_and_closed_in_one_batch_but_closed_only_once() -> None:
    call = build_admission(BudgetReservation("budget:x", 10, 7))
    items = [
        call,
        build_settlement(call, ("budget:x", 7, 5)),
        build_settlement(call, ("budget:x", 7, 5)),
    ]
    plan = decide_batch(build_state(items), items)
    assert plan.answers[1:] == [True, False]
    assert plan.state.cells["budget:x"] == BudgetBalance(spent=5)


def test_another_organization_cant_close_a_call() -> None:
    call = build_admission()
    foreign = CloseItem(call.call_id, OTHER, "{}", ())
    items: list[Item] = [call, foreign]
    assert decide_batch(build_state(items), items).answers[1] is False


def test_an_outdated_generation_is_refused_before_any_charge() -> None:
    items = [build_admission(charges=(RateCharge("rate:x", 60, 1),), generation=3)]
    plan = decide_batch(build_state(items, generation=4), items)
    (response,) = plan.answers
    assert isinstance(response, StaleSnapshot)
    assert response.extra == {"generation": 4}
    assert plan.state.rates == {"rate:x": 0}
    assert plan.opened == []


def test_a_call_with_the_current_generation_or_none_is_admitted() -> None:
    items = [build_admission(generation=4), build_admission()]
    plan = decide_batch(build_state(items, generation=4), items)
    assert [
        response.generation for response in plan.answers if isinstance(response, AdmissionResult)
    ] == [4, 4]


def test_either_all_charges_are_made_or_none() -> None:
    wide, narrow = RateCharge("rate:wide", 60, 10), RateCharge("rate:narrow", 60, 1)
    items = [build_admission(charges=(wide, narrow)), build_admission(charges=(wide, narrow))]
    plan = decide_batch(build_state(items), items)
    refusal = plan.answers[1]
    assert isinstance(refusal, RateLimited)
    assert (refusal.retry_after, refusal.rule) == (1, "rate:narrow")
    assert plan.state.rates == {"rate:wide": NOW + SECOND, "rate:narrow": NOW + SECOND}


def test_an_exhausted_budget_reverts_the_other_charges() -> None:
    items = [
        build_admission(BudgetReservation("budget:x", 6, 7), charges=(RateCharge("rate:x", 60, 1),))
    ]
    plan = decide_batch(build_state(items), items)
    refusal = plan.answers[0]
    assert isinstance(refusal, BudgetExhausted)
    assert refusal.extra == {"limit": 6, "spent": 0, "reserved": 0, "asked": 7}
    assert plan.state.rates == {"rate:x": 0}


def test_a_budget_that_is_listed_twice_is_reserved_twice() -> None:
    items = [
        build_admission(BudgetReservation("budget:x", 10, 6), BudgetReservation("budget:x", 10, 6))
    ]
    plan = decide_batch(build_state(items), items)
    assert isinstance(plan.answers[0], BudgetExhausted)
    assert plan.answers[0].code == "budget_exhausted"
    assert plan.state.cells == {"budget:x": BudgetBalance()}


def test_a_budget_that_others_have_only_reserved_is_not_exhausted() -> None:
    items = [build_admission(BudgetReservation("budget:x", 10, 6)) for _ in range(2)]
    plan = decide_batch(build_state(items), items)
    refusal = plan.answers[1]
    assert isinstance(refusal, BudgetReserved)
    assert (refusal.code, refusal.remaining, refusal.retry_after) == ("budget_reserved", 4, 1)
    assert plan.state.cells == {"budget:x": BudgetBalance(0, 6)}


def test_an_exhausted_budget_is_reported_before_a_reserved_one() -> None:
    both = (BudgetReservation("budget:x", 10, 6), BudgetReservation("budget:y", 5, 6))
    items = [build_admission(BudgetReservation("budget:x", 10, 6)), build_admission(*both)]
    plan = decide_batch(build_state(items), items)
    refusal = plan.answers[1]
    assert isinstance(refusal, BudgetExhausted)
    assert (refusal.code, refusal.rule) == ("budget_exhausted", "budget:y")


READS, SENDS = (
    FlowLabelEffect("flow:x", added_labels=3),
    FlowLabelEffect("flow:x", blocking_labels=3),
)
APPROVAL = ApprovalReference(UUID(int=9), "d" * 64)


def test_labels_apply_from_the_admission_that_adds_them() -> None:
    items = [
        build_admission(flows=(SENDS,)),
        build_admission(flows=(READS,)),
        build_admission(flows=(SENDS,)),
    ]
    plan = decide_batch(build_state(items), items)
    assert [type(response) for response in plan.answers] == [
        AdmissionResult,
        AdmissionResult,
        FlowNeedsApproval,
    ]
    assert plan.state.flows == {"flow:x": CallerFlowLabels(3, NOW)}


def test_a_call_that_isnt_admitted_adds_no_labels() -> None:
    items = [build_admission(BudgetReservation("budget:x", 1, 2), flows=(READS,))]
    plan = decide_batch(build_state(items), items)
    assert isinstance(plan.answers[0], BudgetExhausted)
    assert plan.state.flows == {"flow:x": CallerFlowLabels()}


def test_an_approval_allows_a_denied_flow_once() -> None:
    items = [
        build_admission(flows=(SENDS,), approval=APPROVAL),
        build_admission(flows=(SENDS,), approval=APPROVAL),
    ]
    state = build_state(items)
    state.flows["flow:x"] = CallerFlowLabels(3, NOW)
    state.approvals[APPROVAL.id] = StoredApproval(ORGANIZATION, APPROVAL.digest, NOW)
    plan = decide_batch(state, items)
    assert isinstance(plan.answers[0], AdmissionResult)
    assert isinstance(plan.answers[1], ApprovalRefused)
    assert plan.answers[1].code == "approval_spent"
    assert plan.state.approvals[APPROVAL.id].spent_by == items[0].call_id


def test_an_approval_isnt_used_by_a_call_that_is_denied_for_another_reason() -> None:
    items = [build_admission(BudgetReservation("budget:x", 1, 2), approval=APPROVAL)]
    state = build_state(items)
    state.approvals[APPROVAL.id] = StoredApproval(ORGANIZATION, APPROVAL.digest, NOW)
    plan = decide_batch(state, items)
    assert isinstance(plan.answers[0], BudgetExhausted)
    assert plan.state.approvals[APPROVAL.id].spent_by is None


def test_a_missing_approval_admits_nothing() -> None:
    items = [build_admission(approval=APPROVAL)]
    (response,) = decide_batch(build_state(items), items).answers
    assert isinstance(response, ApprovalRefused)
    assert response.code == "approval_unknown"


def test_a_denial_and_an_event_need_no_admission() -> None:
    item = build_open_item(opening_of(ORGANIZATION, call_id=uuid4()), AT, outcome="refused")
    plan = decide_batch(build_state([item]), [item])
    assert plan.answers == [item.call_id]
    assert plan.state.open_calls == {}


@given(
    st.integers(0, 300),
    st.lists(
        st.tuples(
            st.integers(0, 100),
            st.sampled_from(["budget:a", "budget:b"]),
            st.booleans(),
            st.integers(0, 150),
        ),
        max_size=30,
    ),
)
def test_budget_counters_add_up_for_any_order_of_calls_and_settlements(
    limit: int, calls: list[tuple[int, str, bool, int]]
) -> None:
    items: list[Item] = []
    for amount, key, settles, actual in calls:
        call = build_admission(BudgetReservation(key, limit, amount))
        items += [call, build_settlement(call, (key, amount, actual))] if settles else [call]
    plan = decide_batch(build_state(items), items)
    responses = dict(zip([id(item) for item in items], plan.answers, strict=True))
    running: dict[str, int] = {}
    spent: dict[str, int] = {}
    for item in items:
        response = responses[id(item)]
        if isinstance(item, OpenItem) and isinstance(response, AdmissionResult) and item.admission:
            (reserve,) = item.admission.reservations
            running[reserve.key] = running.get(reserve.key, 0) + reserve.amount
            assert spent.get(reserve.key, 0) + running[reserve.key] <= limit
        elif isinstance(item, CloseItem) and response is True:
            ((key, reserved, actual),) = item.actuals
            running[key] -= reserved
            spent[key] = spent.get(key, 0) + actual
    for key, cell in plan.state.cells.items():
        assert cell == BudgetBalance(spent.get(key, 0), running.get(key, 0))
    positions = sorted(entry.seq for entry in [*plan.opened, *plan.closed])
    assert positions == list(range(1, len(positions) + 1))


@given(st.integers(1, 600), st.integers(1, 20), st.lists(st.integers(0, 5 * SECOND), max_size=60))
def test_no_more_calls_are_admitted_than_the_rate_and_burst_allow(
    per_minute: int, burst: int, pauses: list[int]
) -> None:
    tat, now, admitted = 0, NOW, 0
    charge = RateCharge("rate:x", per_minute, burst)
    for pause in pauses:
        now += pause
        item = build_admission(charges=(charge,))
        state = BatchState({ORGANIZATION: ChainTip()}, {}, {"rate:x": tat}, {}, now)
        plan = decide_batch(state, [item])
        tat = plan.state.rates["rate:x"]
        admitted += isinstance(plan.answers[0], AdmissionResult)
    assert admitted <= burst + (now - NOW) * per_minute / (60 * SECOND)
