"""Calls that a person has to allow, as tasks: promised, decided, and made once, by any process."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.utils import timezone

from agents.approvals.services import resolve_approval
from agents.calls import deferred_calls
from agents.gateway import mcp_tasks
from agents.gateway.transports import GatewayApplication
from agents.models import Agent, Approval, DeferredCall
from agents.policies.services import PolicySpec, set_policy
from bonobot.accounts.models import Organization
from bonobot.core.problems import ServiceUnavailable
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Server
from tests import factories
from tests.agents.gateway.conftest import Reply, Wire, token_of
from tests.agents.gateway.test_mcp_tasks import DECLARED, TASKS, UNKNOWN, about
from tests.agents.gateway.upstream_server import ABLE, ANSWERS, Upstream, give
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
COUNT = {"name": "mcp_workshop_count", "arguments": {"what": "once"}}
SHOWS: dict[str, Any] = {"elicitation": {"url": {}}, "extensions": {TASKS: {}}}
KEY = "bonobot-approval"

Say = Callable[..., Approval]


@pytest.fixture
def rules(acme: Organization, helper: Agent, workshop: Server) -> None:
    policy = PolicySpec("all", ask=("mcp_workshop_count",))
    set_policy(factories.build_administrator(acme), helper, policy)


@pytest.fixture
def number(rules: None, wire: Wire) -> str:
    """The task that a call is promised as."""
    told = wire.modern(AGENT, "tools/call", COUNT, capabilities=DECLARED).result
    assert (told["resultType"], told["status"]) == ("task", "working")
    assert told["ttlMs"] > timedelta(hours=24).total_seconds() * 1_000
    found: str = told["taskId"]
    return found


@pytest.fixture
def say(acme: Organization) -> Say:
    """Answers what waits."""

    def said(what: str, **more: Any) -> Approval:
        waiting = Approval.objects.waiting().get()
        return resolve_approval(factories.build_administrator(acme), waiting, what, **more)

    return said


@pytest.fixture
def other(wire: Wire) -> Iterator[Wire]:
    """The same client at another process, which knows nothing but the rows."""
    mount = GatewayApplication()
    yield Wire(mount, wire.token)
    get_runtime().call(mount.stop)


def look(wire: Wire, number: str, **more: Any) -> dict[str, Any]:
    return about(wire, AGENT, "tasks/get", number, **more).result


def over(wire: Wire, number: str, path: str = AGENT) -> dict[str, Any]:
    """Look until the task is over."""

    def ended() -> dict[str, Any] | None:
        found = about(wire, path, "tasks/get", number).result
        return found if found["status"] in ("completed", "failed", "cancelled") else None

    return eventually(ended, what="the end of the task") or {}


def code(task: dict[str, Any]) -> str:
    assert (task["status"], task["result"]["isError"]) == ("completed", True)
    return str(task["result"]["_meta"]["bonobot/problem"]["code"])


def test_any_process_runs_the_call_once_after_its_approval(
    number: str, wire: Wire, other: Wire, say: Say, effects: Any
) -> None:
    waits = look(wire, number)
    where = f"/{Approval.objects.get().pk}/change/"
    assert (waits["status"], where in waits["statusMessage"]) == ("working", True)
    assert not effects.read_text()
    say("approve")
    done = over(other, number)
    assert done["result"]["content"][0]["text"]
    assert (over(wire, number), effects.read_text()) == (done, "once\n")
    (call,) = AuditRow.objects.filter(event_type="call", outcome="ok")
    assert (call.pk, call.actor_label) == (DeferredCall.objects.get().call_id, "tests")


def test_a_client_with_url_elicitation_is_asked_once(number: str, wire: Wire, say: Say) -> None:
    asks = look(wire, number, capabilities=SHOWS)
    visit = asks["inputRequests"][KEY]
    assert (asks["status"], visit["method"]) == ("input_required", "elicitation/create")
    assert visit["params"]["url"].endswith(f"/{Approval.objects.get().pk}/change/")
    went = {"inputResponses": {KEY: {"action": "accept"}}}
    about(wire, AGENT, "tasks/update", number, params=went)
    assert look(wire, number, capabilities=SHOWS)["status"] == "working"
    say("approve")
    assert over(wire, number)["status"] == "completed"


def test_a_denial_is_the_result_of_the_task(
    number: str, wire: Wire, say: Say, effects: Any
) -> None:
    say("deny", message="Not today.")
    done = over(wire, number)
    assert code(done) == "approval_denied"
    assert "Not today." in done["result"]["content"][0]["text"]
    assert not effects.read_text()


def test_an_expired_approval_is_a_denial(number: str, wire: Wire, effects: Any) -> None:
    Approval.objects.update(expires_at=timezone.now())
    assert code(over(wire, number)) == "approval_expired"
    assert not effects.read_text()


def test_a_canceled_call_withdraws_its_approval(
    number: str, wire: Wire, other: Wire, effects: Any
) -> None:
    assert about(other, AGENT, "tasks/cancel", number).result["resultType"] == "complete"
    assert look(wire, number)["status"] == "cancelled"
    assert Approval.objects.get().state == Approval.State.WITHDRAWN
    assert AuditRow.objects.filter(action="call_taken_back").count() == 1
    # Another time changes nothing, and the same call is asked for anew.
    about(wire, AGENT, "tasks/cancel", number)
    again = wire.modern(AGENT, "tools/call", COUNT, capabilities=DECLARED).result
    assert look(wire, again["taskId"])["status"] == "working"
    assert Approval.objects.waiting().count() == 1
    assert not effects.read_text()


def test_declining_the_url_cancels_the_call(number: str, wire: Wire) -> None:
    declined = {"inputResponses": {KEY: {"action": "decline"}}}
    about(wire, AGENT, "tasks/update", number, params=declined)
    assert look(wire, number)["status"] == "cancelled"


def test_the_task_is_visible_only_to_its_caller(
    acme: Organization, number: str, wire: Wire, say: Say, effects: Any
) -> None:
    say("approve")
    stranger = token_of(factories.build_administrator(acme))
    foreign = token_of(factories.build_administrator(factories.create_organization("other")))
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        params = {"inputResponses": {}} if method == "tasks/update" else {}
        asked = about(wire, AGENT, method, number, token=stranger, params=params)
        assert asked.error["code"] == UNKNOWN
    assert about(wire, AGENT, "tasks/get", number, token=foreign).status == 404
    assert not effects.read_text()
    assert over(wire, number)["status"] == "completed"


def test_a_client_without_tasks_gets_the_ordinary_result(rules: None, wire: Wire) -> None:
    shows = {"elicitation": {"url": {}}}
    asked = wire.modern(AGENT, "tools/call", COUNT, capabilities=shows).result
    assert asked["resultType"] == "input_required"
    told = wire.modern(AGENT, "tools/call", COUNT)
    assert (told.result["isError"], told.code) == (True, "approval_required")
    assert not DeferredCall.objects.exists()


def test_the_same_call_is_deferred_once(number: str, wire: Wire) -> None:
    wire.modern(AGENT, "tools/call", COUNT, capabilities=DECLARED)
    assert (DeferredCall.objects.count(), Approval.objects.count()) == (1, 1)


def test_an_approval_of_an_outdated_call_asks_again(
    acme: Organization, helper: Agent, number: str, wire: Wire, say: Say, effects: Any
) -> None:
    say("approve")
    policy = PolicySpec("all", ask=("mcp_workshop_*",))
    set_policy(factories.build_administrator(acme), helper, policy)
    look(wire, number)
    eventually(lambda: Approval.objects.waiting().exists(), what="the new question")
    assert look(wire, number)["status"] == "working"
    say("approve")
    assert (over(wire, number)["status"], effects.read_text()) == ("completed", "once\n")


def test_a_call_that_is_denied_meanwhile_doesnt_run(
    acme: Organization, helper: Agent, number: str, wire: Wire, say: Say, effects: Any
) -> None:
    say("approve")
    forbids = PolicySpec("denylist", deny=("mcp_workshop_count",))
    set_policy(factories.build_administrator(acme), helper, forbids)
    ended = over(wire, number)
    assert (ended["status"], ended["error"]["code"]) == ("failed", UNKNOWN)
    assert not effects.read_text()


# --- a process that dies


def died(row: DeferredCall) -> None:
    """Let the process that makes the call have died a while ago."""
    DeferredCall.objects.filter(pk=row.pk).update(
        heartbeat_at=timezone.now() - 2 * deferred_calls.LEASE
    )


def test_an_unsent_call_is_run_by_another_process(
    number: str, wire: Wire, say: Say, effects: Any
) -> None:
    say("approve")
    row = deferred_calls.find_deferred_call(
        DeferredCall.objects.get().organization_id, DeferredCall.objects.get().pk
    )
    assert row is not None
    assert deferred_calls.claim_deferred_call(row)
    assert look(wire, number)["status"] == "working"
    assert not effects.read_text()
    died(row)
    assert over(wire, number)["status"] == "completed"
    assert effects.read_text() == "once\n"
    # The one that was thought dead changes nothing any more.
    assert not deferred_calls.update_heartbeat(row)
    assert not deferred_calls.finish_deferred_call(row, DeferredCall.State.DONE, {"result": {}})


def test_a_process_that_lost_its_lease_sends_nothing(
    number: str, wire: Wire, say: Say, effects: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("approve")
    # Another process has taken the call by the time that this one is about to send it.
    monkeypatch.setattr(deferred_calls, "update_heartbeat", lambda row: False)
    done = over(wire, number)
    call = AuditRow.objects.get(pk=DeferredCall.objects.get().call_id)
    assert (code(done), call.code) == ("superseded", "superseded")
    assert not effects.read_text()


def test_a_sent_call_isnt_repeated(number: str, wire: Wire, say: Say, effects: Any) -> None:
    say("approve")
    over(wire, number)
    row = DeferredCall.objects.get()
    DeferredCall.objects.filter(pk=row.pk).update(state=DeferredCall.State.RUNNING)
    died(row)
    assert code(over(wire, number)) == "outcome_unknown"
    assert effects.read_text() == "once\n"


def test_one_of_many_concurrent_polls_runs_the_call(
    number: str, wire: Wire, say: Say, effects: Any
) -> None:
    say("approve")
    row = deferred_calls.find_deferred_call(
        DeferredCall.objects.get().organization_id, DeferredCall.objects.get().pk
    )
    assert row is not None
    stale = DeferredCall.objects.get()
    assert (deferred_calls.claim_deferred_call(row), deferred_calls.claim_deferred_call(stale)) == (
        True,
        False,
    )


def test_a_deferred_call_is_deleted_after_its_ttl(number: str, wire: Wire) -> None:
    with time_machine.travel(timezone.now() + timedelta(days=3), tick=False):
        assert deferred_calls.delete_expired() == 1
    assert about(wire, AGENT, "tasks/get", number).error["code"] == UNKNOWN


# --- servers that ask, and servers that make tasks themselves


@pytest.fixture
def shop(acme: Organization, helper: Agent) -> Iterator[Upstream]:
    with Upstream("shop").listening() as upstream:
        give(upstream, acme, helper)
        set_policy(
            factories.build_administrator(acme), helper, PolicySpec("all", ask=("mcp_shop_*",))
        )
        yield upstream


def promised(wire: Wire, tool: str) -> str:
    params = {"name": f"mcp_shop_{tool}", "arguments": {}}
    found: Reply = wire.modern(AGENT, "tools/call", params, capabilities=ABLE)
    number: str = found.result["taskId"]
    return number


def test_input_requests_of_the_server_are_requested_by_the_task(
    shop: Upstream, wire: Wire, other: Wire, say: Say
) -> None:
    number = promised(wire, "ask")
    say("approve")
    asked = eventually(lambda: look(wire, number).get("inputRequests"), what="request")
    assert [*asked] == [*ANSWERS]
    about(other, AGENT, "tasks/update", number, params={"inputResponses": ANSWERS})
    done = over(wire, number)
    assert "Ann" in done["result"]["content"][0]["text"]
    assert Approval.objects.count() == 1


def test_a_task_of_the_server_becomes_the_clients_task(
    shop: Upstream, wire: Wire, other: Wire, say: Say
) -> None:
    number = promised(wire, "work")
    say("approve")
    assert over(wire, number)["result"]["content"][0]["text"] == 'shop "worked"'
    assert look(other, number)["taskId"] == number


# --- a call that is being made when something happens


@pytest.fixture
def bygone(acme: Organization, helper: Agent) -> Iterator[Upstream]:
    """A server of the handshake era that asks over a live connection, or never answers."""
    with Upstream("bygone", old=True).listening() as upstream:
        give(upstream, acme, helper)
        asks = PolicySpec("all", ask=("mcp_bygone_*",))
        set_policy(factories.build_administrator(acme), helper, asks)
        yield upstream


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_call_that_is_canceled_while_running_ends(
    where: str,
    bygone: Upstream,
    wire: Wire,
    other: Wire,
    say: Say,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_tasks, "HEARTBEAT_INTERVAL_S", 0.05)
    arguments = {"times": 0, "for_ever": True}
    sent = {"name": "mcp_bygone_ask", "arguments": arguments}
    number = wire.modern(AGENT, "tools/call", sent, capabilities=ABLE).result["taskId"]
    say("approve")
    assert look(wire, number)["status"] == "working"
    eventually(lambda: "tools/call" in bygone.http.methods(), what="the call at the server")
    about(wire if where == "here" else other, AGENT, "tasks/cancel", number)
    assert over(wire, number)["status"] == "cancelled"
    call = AuditRow.objects.get(pk=DeferredCall.objects.get().call_id)
    eventually(lambda: call.refresh_from_db() or call.closed, what="the end of the call")
    assert bygone.http.methods().count("tools/call") == 1


def test_a_call_claimed_by_another_process_doesnt_run_here(
    number: str, wire: Wire, say: Say, effects: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("approve")
    monkeypatch.setattr(deferred_calls, "claim_deferred_call", lambda row: False)
    assert look(wire, number)["status"] == "working"
    assert not effects.read_text()


def test_an_error_of_the_server_is_the_result_of_the_task(
    shop: Upstream, wire: Wire, say: Say
) -> None:
    shop.instead["tools/call"] = {"code": -32050, "data": {"why": "shut"}}
    number = promised(wire, "echo")
    say("approve")
    ended = over(wire, number)
    assert (ended["status"], ended["error"]["code"]) == ("failed", -32050)
    assert ended["error"]["data"] == {"why": "shut"}


async def away(request: Any) -> Any:
    raise ServiceUnavailable("Audit log not available.", code="audit_unavailable")


async def unlisted(*_: Any) -> bool:
    return False


def test_a_call_that_cant_be_made_has_its_reason(
    number: str, wire: Wire, say: Say, effects: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("approve")
    monkeypatch.setattr(mcp_tasks.pipeline, "make_call", away)
    assert code(over(wire, number)) == "audit_unavailable"
    assert not effects.read_text()


def test_an_internal_error_is_reported_for_a_removed_tool(
    number: str, wire: Wire, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("approve")
    monkeypatch.setattr(mcp_tasks.pipeline, "make_call", away)
    monkeypatch.setattr(mcp_tasks, "is_tool_listed", unlisted)
    ended = over(wire, number)
    assert (ended["status"], ended["error"]["code"]) == ("failed", -32603)
    assert ended["error"]["data"]["code"] == "audit_unavailable"
