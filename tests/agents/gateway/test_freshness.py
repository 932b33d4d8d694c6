"""A change of any row that governs calls applies to the next call through the gateway.

The call is warm: token, endpoint and snapshot are cached. Then one row is written in one of
Django's ways, and the same call is sent again to the same process. Every governed model has a row
here: the edit that changes the outcome of the call, or the reason why none does; then the call must
have used a new snapshot.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agents.calls.snapshots import get_snapshot_cache
from agents.gateway.authentication import authenticate_client
from agents.gateway.forwarded_requests import read_endpoint
from agents.gateway.routes import GatewayAddress
from agents.gateway.transports import GatewayApplication
from agents.models import (
    Agent,
    AgentAssignment,
    AgentServer,
    Budget,
    ModelEndpoint,
    SessionApproval,
    Skill,
    ToolName,
    ToolPolicy,
    ToolRule,
    Workflow,
)
from bonobot.accounts.models import Issuer, Membership, Organization, Token, User
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import parse_token
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.admin_changes import increment_generation
from bonobot.ledger.policy_generations import load_policy_generation
from mcp_servers.models import Definition, Preset, Secret, Server
from tests import factories
from tests.agents.gateway.conftest import GatewayClient, token_of
from tests.bonobot import test_governed_rows
from tests.bonobot.test_governed_rows import GOVERNED, helper
from tests.servers.raw_http_server import RawHttp

__all__ = ["helper"]
pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
CALL = {"name": test_governed_rows.TOOL, "arguments": {}}
MANY = 1_000_000
APPS = ("tenancy", "mcp_servers", "agents")
# Status, error code, problem code, and the key that the server received.
Observation = tuple[int, Any, Any, str]


@dataclass(frozen=True)
class Row:
    """The row of a model to write, the edit that changes the outcome, and whether deleting does.

    `no_effect` is the reason why no edit changes this call; it must still use a new snapshot.
    """

    edit: Mapping[str, Any] = field(default_factory=dict)
    which: Mapping[str, Any] = field(default_factory=dict)
    removal: bool = True
    no_effect: str = ""


def _without_effect(reason: str, **which: Any) -> Row:
    return Row(which=which, removal=False, no_effect=reason)


ROWS: dict[Any, Row] = {
    Organization: Row({"halted_at": timezone.now()}),
    Token: Row({"revoked_at": timezone.now()}, {"name": "tests"}),
    Agent: Row({"enabled": False}),
    Server: Row({"enabled": False}),
    Definition: Row({"pinned_digest": "another"}, {"kind": "tool"}),
    Secret: Row({"name": "X-Another"}),
    AgentServer: Row({"enabled": False}),
    ToolName: Row({"name": "mcp_web_called_otherwise"}, removal=False),
    Budget: Row({"limit": 0}, removal=False),
    ToolPolicy: Row({"mode": "none"}, removal=False),
    ToolRule: Row({"pattern": "echo"}, removal=False),
    Membership: _without_effect("a token's rights are its own"),
    User: _without_effect("nobody gave the token: it is a program's"),
    Issuer: _without_effect("the token is one of ours"),
    ModelEndpoint: _without_effect("no model is asked", agents=None),
    Preset: _without_effect("its labels allow what is allowed", organization__isnull=False),
    SessionApproval: _without_effect("there is no session"),
    Skill: _without_effect("it is no tool of a server"),
    AgentAssignment: _without_effect("it gives no tool of a server"),
    Workflow: _without_effect("it is no tool of a server"),
}


def get_row(model: Any) -> Any:
    row = model.objects.filter(**ROWS[model].which).order_by("pk").first()
    assert row is not None, f"`helper` has no {model._meta.label}"
    return row


def _save(row: Any, edit: Mapping[str, Any]) -> None:
    for name, value in edit.items():
        setattr(row, name, value)
    row.save()


def _create(row: Any, edit: Mapping[str, Any]) -> None:
    """Delete the row without signals and insert the edited one in bulk."""
    model: Any = type(row)
    for name, value in edit.items():
        setattr(row, name, value)
    with transaction.atomic():
        model._base_manager.filter(pk=row.pk)._raw_delete("default")
        model.objects.bulk_create([row])


def _bulk_update(row: Any, edit: Mapping[str, Any]) -> None:
    for name, value in edit.items():
        setattr(row, name, value)
    type(row).objects.bulk_update([row], list(edit))


EDITS: dict[str, Callable[[Any, Mapping[str, Any]], object]] = {
    "save": _save,
    "update": lambda row, edit: type(row).objects.filter(pk=row.pk).update(**edit),
    "bulk update": _bulk_update,
    "bulk create": _create,
    "update or create": lambda row, edit: type(row).objects.update_or_create(
        pk=row.pk, defaults=edit
    ),
}
REMOVALS: dict[str, Callable[[Any], object]] = {
    "delete": test_governed_rows._delete,
    "delete many": test_governed_rows._delete_many,
}


@pytest.fixture
def upstream() -> RawHttp:
    return RawHttp(test_governed_rows._answer)


@pytest.fixture
def web(upstream: RawHttp) -> Iterator[str]:
    """The URL of a server in this process that records its requests."""
    listening = upstream.listening()
    yield get_runtime().call(listening.__aenter__).url
    get_runtime().call(listening.__aexit__, None, None, None)


class Caller:
    """Calls a tool through the same gateway."""

    def __init__(self, agent: Agent, gateway_client: GatewayClient, upstream: RawHttp) -> None:
        self.agent, self.organization_id = agent, agent.organization_id
        self.gateway_client, self._upstream = gateway_client, upstream
        self.rows = load_all_rows()

    def __call__(self) -> Observation:
        before = len(self._upstream.asked)
        reply = self.gateway_client.modern(AGENT, "tools/call", CALL)
        requests = self._upstream.asked[before:]
        error = reply.message.get("error", {}).get("code", reply.message.get("code"))
        problem = reply.message.get("result", {}).get("_meta", {}).get("bonobot/problem", {})
        key = requests[-1].headers.get("x-key", "") if requests else "nobody was asked"
        return reply.status, error, problem.get("code"), key

    def call_allowed(self) -> Observation:
        """Make an allowed call, so that everything is cached for the next one."""
        observation = self()
        assert observation[:3] == (200, None, None), observation
        return observation

    def is_current(self) -> bool:
        """Return whether the cached snapshot is current."""
        snapshot = get_snapshot_cache().find_cached("agent", self.agent.pk)
        return snapshot is not None and snapshot.generation == load_policy_generation(
            self.organization_id
        )

    def restore(self, *models: Any) -> None:
        """Restore the original rows of these models, or of all."""
        with transaction.atomic():
            for model in models or self.rows:
                rows = self.rows[model]
                current = {row.pk: values(row) for row in model._base_manager.all()}
                # New rows could conflict with the restored ones.
                if created := current.keys() - {row.pk for row in rows}:
                    model._base_manager.filter(pk__in=created)._raw_delete("default")
                for row in rows:
                    if current.get(row.pk) != values(row):
                        row.save_base(raw=True, force_insert=row.pk not in current)
            increment_generation(self.organization_id)


def values(row: Any) -> list[Any]:
    return [getattr(row, field.attname) for field in row._meta.concrete_fields]


def load_all_rows() -> dict[Any, list[Any]]:
    return {
        model: list(model._base_manager.all())
        for model in apps.get_models(include_auto_created=True)
        if model._meta.app_label in APPS and model._meta.managed
    }


@pytest.fixture
def caller(helper: Agent, upstream: RawHttp) -> Iterator[Caller]:
    mount = GatewayApplication()
    administrator = factories.build_administrator(helper.organization)
    text = token_of(administrator, Role.OWNER, calls_per_minute=MANY)
    Agent.objects.filter(pk=helper.pk).update(calls_per_minute=MANY)
    ToolPolicy.objects.filter(agent=helper).update(mode="denylist")  # so that rules apply
    gateway_client = GatewayClient(mount, text)
    gateway_client.modern(AGENT, "tools/call", CALL)
    yield Caller(helper, gateway_client, upstream)
    get_runtime().call(mount.stop)


def assert_applied(
    caller: Caller,
    row: Row,
    label: str,
    change: Callable[[], object],
    *,
    changes_outcome: bool,
    models: tuple[Any, ...] = (),
) -> None:
    """Make a warm call and a change, and check that the next call has another outcome or snapshot.

    `models` are those whose rows the change affects; all if empty.
    """
    before = caller.call_allowed()
    change()
    after = caller()
    if changes_outcome:
        assert after != before, label
    else:
        assert after[:3] == before[:3] or row.no_effect == "", label
        assert after != before or caller.is_current(), label
    caller.restore(*models)


def test_every_governed_model_is_covered() -> None:
    assert set(GOVERNED.values()) == ROWS.keys()


def iterate_edits() -> Iterator[tuple[Any, str]]:
    """Yield every model with the first way of writing, and the other ways with some models.

    `test_governed_rows` tests each way with every model.
    """
    first, *other_ways = EDITS
    yield from ((model, first) for model in ROWS)
    yield from zip((model for model, row in ROWS.items() if row.edit), cycle(other_ways))


def test_a_changed_row_applies_to_the_next_call(caller: Caller) -> None:
    for model, way in iterate_edits():
        instance, row = get_row(model), ROWS[model]
        name = test_governed_rows._field(instance)
        edit = row.edit or {name: getattr(instance, name)}
        label = f"{model._meta.label} by {way}"
        change = partial(EDITS[way], instance, edit)
        assert_applied(caller, row, label, change, changes_outcome=bool(row.edit), models=(model,))


def list_tool_names(caller: Caller) -> list[str]:
    reply = caller.gateway_client.modern(AGENT, "tools/list")
    return [tool["name"] for tool in reply.result["tools"]]


def test_a_change_applies_to_the_next_list(caller: Caller) -> None:
    assert CALL["name"] in list_tool_names(caller)
    AgentServer.objects.filter(agent=caller.agent).delete()
    assert CALL["name"] not in list_tool_names(caller)
    Agent.objects.filter(pk=caller.agent.pk).delete()
    assert (
        caller.gateway_client.modern(AGENT, "tools/list").error["data"]["code"]
        == "unknown_endpoint"
    )


def test_a_revoked_token_gets_no_list(caller: Caller) -> None:
    assert CALL["name"] in list_tool_names(caller)
    Token.objects.filter(key=parse_token(caller.gateway_client.token)[0]).delete()
    assert caller.gateway_client.modern(AGENT, "tools/list").code == "bad_token"


def test_a_repeated_list_takes_two_queries(caller: Caller) -> None:
    address = GatewayAddress("agent", caller.agent.slug)
    client = get_runtime().call(
        authenticate_client, caller.gateway_client.token, address, "127.0.0.1"
    )
    read_endpoint(client)
    with CaptureQueriesContext(connection) as queries:
        read_endpoint(client)
    assert len(queries) == 2


def test_a_deleted_row_applies_to_the_next_call(caller: Caller) -> None:
    for (model, row), way in zip(ROWS.items(), cycle(REMOVALS)):
        instance, label = get_row(model), f"{model._meta.label} by {way}"
        assert_applied(
            caller, row, label, partial(REMOVALS[way], instance), changes_outcome=row.removal
        )


def test_a_cascading_delete_applies_to_the_next_call(caller: Caller) -> None:
    deleted: set[Any] = set()
    for model, row in ROWS.items():
        for name in test_governed_rows._parents_of(model):
            label = f"{model._meta.label} with {name}"
            if (model._meta.label, name) in test_governed_rows.READ_EACH_TIME:
                continue
            rows = model._default_manager.filter(**row.which).exclude(**{name: None})
            parent = getattr(rows.first(), name, None)
            if parent is None:  # the row of this call has no parent
                parent = getattr(model._default_manager.exclude(**{name: None}).first(), name)
            if parent in deleted:  # already deleted with this parent
                continue
            deleted.add(parent)
            changes_outcome = isinstance(parent, Organization | Agent | Server)
            assert_applied(
                caller,
                row,
                label,
                partial(test_governed_rows._delete_many, parent),
                changes_outcome=changes_outcome,
            )
