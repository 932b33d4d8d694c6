"""Calls that a server makes a task of: looked at until they are over, in whichever process."""

import json
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from django.utils import timezone

from agents.approvals.services import resolve_approval
from agents.elicitations.services import answer_request
from agents.models import Approval, ElicitationRequest, PendingCall, Session, Step
from agents.sessions import services as sessions
from agents.tasks import sweep
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.client_capabilities import set_client_capabilities
from tests import factories
from tests.agents.sessions.client_request_sessions import goes
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp

pytestmark = pytest.mark.django_db(transaction=True)

TASKS = "io.modelcontextprotocol/tasks"
WORKING = {"status": "working"}
FORM = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Which one?",
        "requestedSchema": {"type": "object", "properties": {"one": {"type": "string"}}},
    },
}
ASKS = {"status": "input_required", "inputRequests": {"which": FORM}}


def done(text):
    return {"status": "completed", "result": {"content": [{"type": "text", "text": text}]}}


class Remote:
    """A modern server over HTTP whose only tool is a task; `states` are what looks find."""

    def __init__(self):
        self.http = RawHttp(self.respond)
        self.states = [WORKING]
        self.ttl_ms = None

    def respond(self, asked):
        params = asked.message.get("params", {})
        found = {
            "server/discover": {
                "supportedVersions": [raw_http_server.MODERN],
                "capabilities": {"tools": {}, "extensions": {TASKS: {}}},
            },
            "tools/list": {"tools": [{"name": "build", "inputSchema": {"type": "object"}}]},
            "tools/call": {
                **{"resultType": "task", "taskId": "t-1", "status": "working"},
                **{"pollIntervalMs": 500, "ttlMs": self.ttl_ms},
            },
            "tasks/cancel": {},
            "tasks/update": {},
        }
        if asked.method in ("tasks/update", "tasks/cancel"):
            self.states = self.states[1:] or [WORKING]
        if asked.method == "tasks/get":
            assert asked.headers["mcp-name"] == params["taskId"] == "t-1"
            if not self.states:
                return raw_http_server.error(asked, -32602, 200)
            now = self.states[0]
            if len(self.states) > 1 and now["status"] == "working":
                self.states = self.states[1:]
            return raw_http_server.result(asked, {"taskId": "t-1", **now})
        return raw_http_server.result(asked, found[asked.method])

    def count(self, method):
        return self.http.methods().count(method)


@pytest.fixture
def remote(acme, helper, settings):
    """A server whose tasks outlive our calls, given to the agent; a leg looks for a second."""
    settings.BONOBOT_READ_S = 1
    one, stack = Remote(), AsyncExitStack()
    get_runtime().call(stack.enter_async_context, one.http.listening())
    server = factories.approve_server(
        acme, factories.create_http_server(acme, one.http.url, "remote"), helper
    )
    one.server = server
    yield one
    get_runtime().call(get_connection_pool().forget_server, server.pk)
    get_runtime().call(stack.aclose)


@pytest.fixture
def begin(boss, helper, runner):
    return lambda: goes(sessions.start_session(boss, helper, "/mcp_remote_build {}"), runner)


def call_of(session):
    return Step.objects.get(session=session, kind=Step.Kind.CALL)


def later(session):
    """Let the time come at which the task is looked at next."""
    past = timezone.now() - timedelta(seconds=1)
    assert PendingCall.objects.filter(session=session, next_at__gt=past).update(next_at=past) == 1


def codes(session):
    rows = AuditRow.objects.filter(session_id=session.pk, event_type="call").order_by("seq")
    return [row.code for row in rows]


def test_a_task_is_polled_without_occupying_a_worker(remote, begin, runner):
    session = begin()
    assert (session.status, session.runner) == (Session.Status.WAITING, None)
    assert codes(session) == ["task", "task"]
    looks = remote.count("tasks/get")
    assert 1 <= looks <= 3
    assert sweep() == 0  # not yet
    assert goes(session, runner).status == Session.Status.WAITING

    later(session)
    assert sweep() == 1
    remote.states = [done("built")]
    assert goes(session, runner).status == Session.Status.DONE
    step = call_of(session)
    assert (step.payload["text"], step.state) == ("built", Step.State.DONE)
    assert codes(session) == ["task", "task", ""]
    assert remote.count("tools/call") == 1
    rows = AuditRow.objects.filter(session_id=session.pk, event_type="call").order_by("seq")
    first, *_, last = rows
    assert str(first.pk) in json.loads(last.opened)["details"]["continues"]
    assert PendingCall.objects.get().closed_at is not None


def test_an_input_request_of_a_task_is_sent_once(remote, begin, runner, boss):
    remote.states = [ASKS]
    session = begin()
    assert session.status == Session.Status.WAITING
    remote.states = [ASKS, ASKS, done("built")]  # it comes to the answer a little later
    answer_request(boss, ElicitationRequest.objects.get(), "accept", {"one": "blue"})
    goes(session, runner)
    while session.status == Session.Status.WAITING:
        remote.states = [done("built")]
        later(session)
        sweep()
        goes(session, runner)
    updates = [one.message for one in remote.http.asked if one.method == "tasks/update"]
    given = {"which": {"action": "accept", "content": {"one": "blue"}}}
    assert [update["params"]["inputResponses"] for update in updates] == [given]
    assert ElicitationRequest.objects.count() == 1
    assert call_of(session).payload["text"] == "built"


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([{"status": "failed", "error": {"code": -32000, "message": "No disk"}}], "upstream_error"),
        ([{"status": "cancelled"}], "task_cancelled"),
        ([{**done(""), "result": {"isError": True, "content": []}}], "tool_error"),
    ],
)
def test_a_failed_task_is_reported(remote, begin, states, code):
    remote.states = states
    session = begin()
    assert session.status == Session.Status.DONE
    assert (call_of(session).payload["code"], call_of(session).state) == (code, Step.State.FAILED)


@pytest.mark.parametrize(
    ("states", "cause"),
    [
        ([], "task_lost"),
        ([{"status": "completed"}], "protocol_error"),
        ([{**ASKS, "inputRequests": {"x": {"method": "roots/list"}}}], "protocol_error"),
    ],
)
def test_a_person_is_asked_about_a_task_whose_end_isnt_known(
    remote, begin, runner, boss, states, cause
):
    remote.states = states
    session = begin()
    assert session.status == Session.Status.WAITING
    approval = Approval.objects.get(session=session)
    assert approval.code == "call_interrupted"
    row = AuditRow.objects.get(pk=approval.call_id)
    assert (row.outcome, row.code) == ("unknown", "outcome_unknown")
    assert json.loads(row.closed)["details"]["cause"] == cause
    assert PendingCall.objects.get().closed_at is not None

    resolve_approval(boss, approval, "deny")
    goes(session, runner)
    step = call_of(session)
    assert (session.status, step.state) == (Session.Status.DONE, Step.State.UNKNOWN)
    assert step.payload["code"] == "outcome_unknown"
    assert remote.count("tools/call") == 1


def test_a_lost_task_is_started_again_when_a_person_approves_it(remote, begin, runner, boss):
    remote.states = []
    session = begin()
    remote.states = [done("built")]
    for code in ("call_interrupted", "flow_needs_approval"):
        resolve_approval(boss, Approval.objects.waiting().get(code=code), "approve")
        goes(session, runner)
    assert (session.status, call_of(session).payload["text"]) == ("done", "built")
    assert remote.count("tools/call") == 2


def test_a_task_that_takes_too_long_is_canceled_and_a_person_is_asked(remote, begin, runner):
    remote.ttl_ms = 60_000
    session = begin()
    PendingCall.objects.update(ends_at=timezone.now())
    later(session)
    sweep()
    goes(session, runner)
    row = AuditRow.objects.get(pk=Approval.objects.get(session=session).call_id)
    assert json.loads(row.closed)["details"]["cause"] == "task_expired"
    assert remote.count("tasks/cancel") == 1


def test_a_canceled_session_cancels_its_task(remote, begin, runner, boss):
    session = begin()
    sessions.cancel_session(boss, session)
    goes(session, runner)
    assert session.status == Session.Status.CANCELLED
    assert remote.count("tasks/cancel") == 1
    assert call_of(session).payload["code"] == "unfinished"


def test_an_interrupted_poll_is_repeated(remote, begin, runner):
    """The process died while it looked: a call of unknown outcome would be asked about instead."""
    session = begin()
    later(session)
    sweep()

    # Its id is one that the audit knows and the pending call has not as its last.
    first, _last = PendingCall.objects.get().legs
    Step.objects.filter(pk=call_of(session).pk).update(call_id=first)
    remote.states = [done("built")]
    goes(session, runner)
    assert (session.status, call_of(session).payload["text"]) == ("done", "built")
    assert remote.count("tools/call") == 1


def test_a_short_outage_of_the_server_loses_no_task(remote, begin, runner):
    session = begin()
    later(session)
    sweep()
    respond, remote.http.respond = remote.http.respond, lambda asked: raw_http_server.response(503)
    goes(session, runner)
    assert session.status == Session.Status.WAITING
    remote.http.respond = respond
    remote.states = [done("built")]
    later(session)
    sweep()
    assert goes(session, runner).status == Session.Status.DONE


def test_a_child_process_with_a_task_isnt_closed(asker, says, came):
    asker("modern")
    session = says("task", states=[WORKING, WORKING, done("built")])
    assert (session.status, call_of(session).payload["text"]) == (Session.Status.DONE, "built")
    assert len(came("tasks/get")) == 3


def test_the_mcp_root_is_the_sessions_folder(asker, says, boss, helper, came, tmp_path, runner):
    server = asker("modern")
    set_client_capabilities(boss, server, roots=True)
    rounds = [{"inputRequests": {"r": {"method": "roots/list"}}}]
    session = says("script", rounds=rounds)
    (root,) = came("tools/call")[1]["params"]["inputResponses"]["r"]["roots"]
    assert root["uri"].endswith(f"/workspaces/{helper.organization_id}/{helper.pk}")
    assert session.status == Session.Status.DONE
    text = f"/mcp_asker_script {json.dumps({'rounds': rounds})}"
    goes(sessions.start_session(boss, helper, text, working_dir=str(tmp_path)), runner)
    (root,) = came("tools/call")[3]["params"]["inputResponses"]["r"]["roots"]
    assert root == {"uri": tmp_path.as_uri(), "name": "workspace"}
