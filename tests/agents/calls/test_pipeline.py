"""The call pipeline: each stage, with a real stdio server."""

import json
import sys
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from agents.calls.snapshots import get_snapshot_cache
from agents.calls.types import CallRefused
from agents.models import Agent, Approval, Budget, StoredResult
from agents.policies.services import PolicySpec, set_policy
from agents.services import attach_server
from bonobot.accounts.roles import Role
from bonobot.core.problems import Forbidden, NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.definition_reviews import approve_definitions, reset_review
from mcp_servers.models import Definition, Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server, set_server_enabled
from tests import factories
from tests.bonobot.ledger.factories import load_organization_balances
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp

pytestmark = pytest.mark.django_db(transaction=True)

ECHO = "mcp_workshop_echo"


def catch_problem(call, *args, **kwargs) -> Problem:
    with pytest.raises(Problem) as caught:
        call(*args, **kwargs)
    return caught.value


def get_last_call() -> AuditRow:
    return AuditRow.objects.filter(event_type="call").order_by("seq").last()


def test_an_allowed_call_reaches_the_server_and_is_recorded(workshop, call):
    outcome = call(ECHO, {"text": "hello"})
    assert (outcome.outcome, outcome.text) == ("ok", "hello")
    row = get_last_call()
    assert (row.action, row.resource_type, row.resource_id) == ("agent_tool_call", "mcp_tool", ECHO)
    assert (row.decision, row.outcome) == ("allow", "ok")
    details = json.loads(row.opened)["details"]
    assert details["mcp_server_id"] == str(workshop.pk)
    assert details["mcp_server_name"] == "workshop"
    assert details["tool_name"] == "echo"
    assert details["arguments"] == {"text": "hello"}
    assert details["parent_execution"] is None
    assert json.loads(row.closed)["details"]["execution_time_ms"] == outcome.duration_ms


def test_the_complete_result_reaches_the_caller(workshop, call):
    outcome = call("mcp_workshop_add", {"a": 2, "b": 3})
    assert outcome.result["structuredContent"] == {"result": 5}


def test_a_tool_error_is_an_outcome(workshop, call):
    outcome = call("mcp_workshop_fail", {"reason": "no luck"})
    assert (outcome.outcome, outcome.code) == ("error", "tool_error")
    assert "no luck" in outcome.text
    assert get_last_call().outcome == "error"


def test_an_unknown_tool_is_refused_and_recorded(workshop, call):
    problem = catch_problem(call, "mcp_workshop_nothing")
    assert (problem.code, problem.field) == ("unknown_tool", "tool")
    assert (get_last_call().outcome, get_last_call().code) == ("refused", "unknown_tool")


def test_a_hidden_tool_and_one_that_doesnt_exist_are_reported_alike(acme, helper, workshop, call):
    """The model of an agent sees only tools that aren't off, under their short names."""
    set_policy(factories.build_administrator(acme), helper, PolicySpec("allowlist"))
    for name in ("echo", "nothing", "no\u200bthing`"):
        problem = catch_problem(call, name)
        shown_name = name.replace("\u200b", "⟨U+200B⟩")
        assert problem.code == "unknown_tool"
        assert problem.detail == f"The agent `{helper.name}` has no tool `{shown_name}`."
        assert problem.remedy == (
            "Check the name. If the tool is set to Deny, change that on the agent's Tools tab."
        )


@pytest.mark.parametrize(
    ("arguments", "field"), [({}, "$.text"), ({"text": 1}, "$.text"), ({"text": None}, "$.text")]
)
def test_invalid_arguments_never_reach_the_server(workshop, call, arguments, field):
    problem = catch_problem(call, ECHO, arguments)
    assert (problem.code, problem.field) == ("invalid_arguments", field)
    assert get_last_call().outcome == "refused"


def test_a_policy_change_applies_to_the_next_call(acme, helper, workshop, call):
    administrator = factories.build_administrator(acme)
    assert call(ECHO, {"text": "x"}).outcome == "ok"
    set_policy(administrator, helper, PolicySpec("allowlist", allow=("mcp_workshop_add",)))
    assert catch_problem(call, ECHO, {"text": "x"}).code == "denied_by_policy"
    set_policy(administrator, helper, PolicySpec("all"))
    assert call(ECHO, {"text": "x"}).outcome == "ok"


def test_an_attachment_can_exclude_tools(acme, helper, workshop, call):
    attach_server(factories.build_administrator(acme), helper, workshop, denied_tools=["ec*"])
    assert catch_problem(call, ECHO, {"text": "x"}).code == "denied_by_attachment"
    assert call("mcp_workshop_add", {"a": 1, "b": 1}).outcome == "ok"


def test_disabling_the_server_applies_immediately(acme, workshop, call):
    administrator = factories.build_administrator(acme)
    call(ECHO, {"text": "x"})
    set_server_enabled(administrator, workshop, enabled=False)
    assert catch_problem(call, ECHO, {"text": "x"}).code == "server_disabled"


def test_a_changed_definition_is_denied_until_approved(acme, workshop, call):
    call(ECHO, {"text": "x"})
    echo = Definition.objects.get(server=workshop, name="echo")
    Definition.objects.filter(pk=echo.pk).update(digest="changed")
    assert catch_problem(call, ECHO, {"text": "x"}).code == "definition_changed"
    approve_definitions(factories.build_administrator(acme), workshop, {echo.pk: "changed"})
    assert call(ECHO, {"text": "x"}).outcome == "ok"


def test_a_definition_with_a_revoked_approval_is_denied(acme, workshop, call):
    reset_review(factories.build_administrator(acme), workshop.definitions.get(name="echo"))
    assert catch_problem(call, ECHO, {"text": "x"}).code == "not_approved"


def test_an_agent_of_another_organization_isnt_found(workshop, call):
    stranger = factories.build_administrator(factories.create_organization("other"))
    assert isinstance(catch_problem(call, ECHO, {"text": "x"}, principal=stranger), NotFound)


def test_a_token_for_one_agent_cant_call_another(acme, helper, workshop, call):
    other_agent = factories.create_agent(acme, "other")
    administrator = factories.build_administrator(acme)
    principal = type(administrator)(
        **{**vars(administrator), "agent_ids": frozenset({other_agent.pk})}
    )
    assert isinstance(catch_problem(call, ECHO, {"text": "x"}, principal=principal), NotFound)


def test_a_role_without_permission_cant_call_tools(acme, workshop, call):
    auditor = factories.create_member(acme, Role.AUDITOR)
    assert isinstance(catch_problem(call, ECHO, {"text": "x"}, principal=auditor), Forbidden)


def test_a_call_that_times_out_is_unknown_and_the_next_one_works(workshop, call):
    call(ECHO, {"text": "warm"})
    outcome = call("mcp_workshop_wait", {"seconds": 30}, timeout_s=0.3)
    assert (outcome.outcome, outcome.code) == ("unknown", "outcome_unknown")
    assert get_last_call().outcome == "unknown"
    assert call(ECHO, {"text": "still here"}).text == "still here"


def test_a_crashed_server_is_restarted_and_no_call_repeated(workshop, call, effects):
    call("mcp_workshop_count", {"what": "one"})
    crashed = call("mcp_workshop_crash")
    assert (crashed.outcome, crashed.code) == ("unknown", "outcome_unknown")
    assert call("mcp_workshop_count", {"what": "two"}).outcome == "ok"
    assert effects.read_text().splitlines() == ["one", "two"]


def test_the_rate_of_an_agent_is_limited(helper, workshop, call):
    Agent.objects.filter(pk=helper.pk).update(calls_per_minute=2)
    assert [call(ECHO, {"text": text}).outcome for text in "ab"] == ["ok", "ok"]
    problem = catch_problem(call, ECHO, {"text": "c"})
    assert problem.code == "rate_limited"
    assert problem.retry_after > 0


def test_a_budget_of_calls_is_never_overspent(acme, helper, workshop, call):
    Budget.objects.create(organization=acme, agent=helper, unit="calls", period="total", limit=2)
    call(ECHO, {"text": "1"})
    call(ECHO, {"text": "2"})
    assert catch_problem(call, ECHO, {"text": "3"}).code == "budget_exhausted"
    (cell,) = load_organization_balances(acme.pk).values()
    assert (cell.spent, cell.reserved) == (2, 0)


def test_a_long_result_is_truncated_stored_and_readable(acme, workshop, call, settings):
    settings.BONOBOT_RESULT_LIMIT = 1024
    outcome = call("mcp_workshop_long", {"characters": 5000})
    assert len(outcome.text) < 1500
    assert StoredResult.objects.get(pk=outcome.call_id).text == "x" * 5000
    settings.BONOBOT_RESULT_LIMIT = 256 * 1024
    remainder = call("read_result", {"result_id": str(outcome.call_id), "offset": 4999})
    assert remainder.text.startswith("x\n[characters 4999 to 5000 of 5000]")


def test_a_stored_result_of_another_session_isnt_found(workshop, call, settings):
    settings.BONOBOT_RESULT_LIMIT = 1024
    outcome = call("mcp_workshop_long", {"characters": 5000})
    StoredResult.objects.update(session_id=uuid4())
    read = call("read_result", {"result_id": str(outcome.call_id)})
    assert read.code == "not_found"


def test_a_stored_result_of_another_agent_isnt_found(acme, workshop, call, settings):
    settings.BONOBOT_RESULT_LIMIT = 1024
    outcome = call("mcp_workshop_long", {"characters": 5000})
    StoredResult.objects.update(agent=factories.create_agent(acme, "other"))
    read = call("read_result", {"result_id": str(outcome.call_id)})
    assert (read.outcome, read.code) == ("error", "not_found")


def test_secrets_of_the_server_are_masked_in_the_audit_log(workshop, call, effects):
    call(ECHO, {"text": f"the value is {effects}"})
    assert str(effects) not in get_last_call().opened


def test_arguments_beyond_the_limit_are_stored_as_a_digest(workshop, call):
    call(ECHO, {"text": "y" * 20_000})
    arguments = json.loads(get_last_call().opened)["details"]["arguments"]
    assert set(arguments) == {"truncated", "sha256", "length"}
    assert len(arguments["truncated"]) == 16_384


def test_the_child_sees_only_its_configured_environment(workshop, call, monkeypatch):
    monkeypatch.setenv("CANARY_TOKEN", "secret")
    names = call("mcp_workshop_environment").text
    assert "WORKSHOP_FILE" in names
    assert "CANARY_TOKEN" not in names
    assert "BONOBOT" not in names


# -- without an agent ----------------------------------------------------------------------------


def test_a_server_is_called_without_an_agent_by_its_own_tool_names(workshop, call):
    outcome = call("echo", {"text": "direct"}, agent_id=None, server_id=workshop.pk)
    assert outcome.text == "direct"
    assert get_last_call().action == "tool_call"


def test_members_cant_call_tools_without_an_agent(acme, workshop, call):
    member = factories.create_member(acme, Role.MEMBER)
    options = {"principal": member, "agent_id": None, "server_id": workshop.pk}
    assert isinstance(catch_problem(call, "echo", {"text": "x"}, **options), Forbidden)


def test_a_reviewer_can_try_a_definition_before_approving_it(acme, workshop, call):
    reset_review(factories.build_administrator(acme), workshop.definitions.get(name="echo"))
    without_agent = {"agent_id": None, "server_id": workshop.pk}
    assert catch_problem(call, "echo", {"text": "x"}, **without_agent).code == "not_approved"
    assert call("echo", {"text": "x"}, **without_agent, allow_unapproved=True).outcome == "ok"
    operator = factories.create_member(acme, Role.OPERATOR)
    as_operator = {**without_agent, "principal": operator, "allow_unapproved": True}
    assert catch_problem(call, "echo", {"text": "x"}, **as_operator).code == "not_approved"


def test_an_empty_tool_name_isnt_found(call):
    assert isinstance(catch_problem(call, "echo", agent_id=None), NotFound)


def test_an_unreachable_server_is_an_outcome(acme, helper, workshop, call):
    Server.objects.filter(pk=workshop.pk).update(
        endpoint_config={"command": "/nowhere/at-all", "args": []}
    )
    get_runtime().call(get_connection_pool().forget_server, workshop.pk)
    outcome = call(ECHO, {"text": "x"})
    assert outcome.outcome == "error"
    assert outcome.code in ("server_unreachable", "server_crashed")
    assert "workshop" in outcome.text


@pytest.fixture
def serve_http():
    """A function that serves raw HTTP responses on this process's loop and returns the URL."""
    stack = AsyncExitStack()

    def start_server(respond):
        return get_runtime().call(stack.enter_async_context, RawHttp(respond).listening()).url

    yield start_server
    get_runtime().call(stack.aclose)


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_refuses_credentials_is_marked(acme, helper, call, serve_http, status):
    accepts_credentials = True

    def respond(request):
        if not accepts_credentials:
            return raw_http_server.response(status, b"")
        if request.method == "server/discover":
            return raw_http_server.discovery(request)
        return raw_http_server.result(
            request, {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
        )

    server = factories.create_http_server(acme, serve_http(respond))
    factories.approve_server(acme, server, helper)
    accepts_credentials = False
    outcome = call("mcp_web_t")
    assert (outcome.outcome, outcome.code) == ("error", "needs_reauth")
    server.refresh_from_db()
    assert (server.status, server.status_code) == ("needs_reauth", "needs_reauth")


def test_an_unavailable_server_is_marked_immediately(acme, helper, workshop, call):
    Server.objects.filter(pk=workshop.pk).update(
        endpoint_config={"command": "/nowhere/at-all", "args": []}
    )
    get_runtime().call(get_connection_pool().forget_server, workshop.pk)
    for _ in range(2):
        call(ECHO, {"text": "x"})
    workshop.refresh_from_db()
    assert workshop.status == "error"
    assert workshop.checks.filter(ok=False).count() == 1


def test_changed_instructions_are_withheld_and_disable_the_tools(acme, helper, workshop, call):
    def load_instructions():
        return get_snapshot_cache().load_current("agent", helper.pk).instructions

    assert load_instructions() == {"workshop": "Tools to test with."}
    definition = Definition.objects.get(kind="instructions")
    Definition.objects.filter(pk=definition.pk).update(digest="changed")
    assert load_instructions() == {}
    with pytest.raises(CallRefused) as raised:
        call(ECHO, {"text": "x"})
    assert raised.value.code == "definition_changed"
    approve_definitions(factories.build_administrator(acme), workshop, {definition.pk: "changed"})
    assert call(ECHO, {"text": "x"}).outcome == "ok"
    assert load_instructions() == {"workshop": "Tools to test with."}
    attach_server(factories.build_administrator(acme), helper, workshop, enabled=False)
    assert load_instructions() == {}


# -- what the audit log contains -----------------------------------------------------------------

CANARY = "cnry-7Qx9/+ZkM3"


def test_equal_calls_have_the_same_fingerprint_in_the_audit_log(workshop, call):
    for text in ("same", "same", "other"):
        call(ECHO, {"text": text}, client="curl/8")
    rows = AuditRow.objects.filter(event_type="call").order_by("seq")
    opened = [json.loads(row.opened)["details"] for row in rows]
    closed = [json.loads(row.closed)["details"] for row in rows]
    for details, name in ((opened, "input_sha256"), (closed, "output_sha256")):
        first, second, third = (detail[name] for detail in details)
        assert first == second != third
        assert len(first) == 64
    assert opened[0]["client"] == "curl/8"
    assert (opened[0]["transport"], opened[0]["era"]) == ("stdio", workshop.era)


def test_the_secret_of_another_server_is_masked_in_arguments_and_results(
    acme, helper, workshop, call, settings
):
    administrator = factories.build_administrator(acme)
    config = {"command": sys.executable, "args": ["-m", "x"], "env": {"KEY": CANARY}}
    create_server(
        administrator, ServerSpec(name="vault", transport_type="stdio", endpoint_config=config)
    )
    settings.BONOBOT_RESULT_LIMIT = 16
    outcome = call(ECHO, {"text": f"the key is {CANARY}, they say"})
    row = get_last_call()
    stored = StoredResult.objects.get(pk=outcome.call_id)
    texts = (outcome.text, str(outcome.result), row.opened, row.closed, stored.text)
    assert not [text for text in texts if "cnry-7Q" in text]
    assert "********" in stored.text
    assert json.loads(row.closed)["details"]["secrets_masked"] is True


def test_an_approval_contains_no_secret_of_another_server(acme, helper, workshop, call):
    administrator = factories.build_administrator(acme)
    config = {"command": sys.executable, "args": ["-m", "x"], "env": {"KEY": CANARY}}
    create_server(
        administrator, ServerSpec(name="vault", transport_type="stdio", endpoint_config=config)
    )
    set_policy(administrator, helper, PolicySpec("all", ask=(ECHO,)))
    assert catch_problem(call, ECHO, {"text": CANARY}).code == "approval_required"
    assert CANARY not in str(Approval.objects.get().arguments)
