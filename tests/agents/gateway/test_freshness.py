"""Freshness: a change of whatever governs a call holds on the very next one, through the gateway.

The call is warm: the token, the place and the snapshot are at hand, and nothing is read for it but
what its admission returns. Then one row is written, by a way that Django has, and the same call is
sent again, to the same process. Every governed model has a row here: what of it turns the call
around, or why nothing of it can be seen in this call; then it must have been decided anew.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import pytest
from django.apps import apps
from django.db import transaction
from django.utils import timezone

from agents.calls.snapshots import get_snapshot_cache
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
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.admin_changes import increment_generation
from bonobot.ledger.queries import load_policy_generation
from mcp_servers.models import Definition, Preset, Secret, Server
from tests import factories
from tests.agents.gateway.conftest import Wire, token_of
from tests.bonobot import test_governed_rows
from tests.bonobot.test_governed_rows import GOVERNED, helper
from tests.servers.raw_http_server import RawHttp

__all__ = ["helper"]
pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
CALL = {"name": test_governed_rows.TOOL, "arguments": {}}
MANY = 1_000_000
OURS = ("tenancy", "mcp_servers", "agents")
# What is told of a call, and the key that its server was shown.
Seen = tuple[int, Any, Any, str]


@dataclass(frozen=True)
class Row:
    """Which row of a model is written, what turns the call around, and whether its removal does.

    `unseen` says why nothing of it changes this call: then its next one is only decided anew.
    """

    edit: Mapping[str, Any] = field(default_factory=dict)
    which: Mapping[str, Any] = field(default_factory=dict)
    removal: bool = True
    unseen: str = ""


def _unseen(why: str, **which: Any) -> Row:
    return Row(which=which, removal=False, unseen=why)


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
    Membership: _unseen("a token's rights are its own"),
    User: _unseen("nobody gave the token: it is a program's"),
    Issuer: _unseen("the token is one of ours"),
    ModelEndpoint: _unseen("no model is asked", agents=None),
    Preset: _unseen("its labels allow what is allowed", organization__isnull=False),
    SessionApproval: _unseen("there is no session"),
    Skill: _unseen("it is no tool of a server"),
    AgentAssignment: _unseen("it gives no tool of a server"),
    Workflow: _unseen("it is no tool of a server"),
}


def row_of(model: Any) -> Any:
    found = model.objects.filter(**ROWS[model].which).order_by("pk").first()
    assert found is not None, f"`helper` has no {model._meta.label}"
    return found


def _save(row: Any, edit: Mapping[str, Any]) -> None:
    for name, value in edit.items():
        setattr(row, name, value)
    row.save()


def _create(row: Any, edit: Mapping[str, Any]) -> None:
    """Insert the row anew in bulk, as it is to be, after it was taken away unseen."""
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
    """The address of a server that answers in this process and keeps what it was asked."""
    listening = upstream.listening()
    yield get_runtime().call(listening.__aenter__).url
    get_runtime().call(listening.__aexit__, None, None, None)


class Caller:
    """Calls one tool through one gateway that goes on all the time."""

    def __init__(self, agent: Agent, wire: Wire, upstream: RawHttp) -> None:
        self.agent, self.organization_id = agent, agent.organization_id
        self._wire, self._upstream = wire, upstream
        self.rows = stored()

    def __call__(self) -> Seen:
        before = len(self._upstream.asked)
        reply = self._wire.modern(AGENT, "tools/call", CALL)
        asked = self._upstream.asked[before:]
        error = reply.message.get("error", {}).get("code", reply.message.get("code"))
        problem = reply.message.get("result", {}).get("_meta", {}).get("bonobot/problem", {})
        key = asked[-1].headers.get("x-key", "") if asked else "nobody was asked"
        return reply.status, error, problem.get("code"), key

    def warm(self) -> Seen:
        """Return what is seen of a call that is allowed; the next one would read nothing."""
        seen = self()
        assert seen[:3] == (200, None, None), seen
        return seen

    def decided_anew(self) -> bool:
        """Tell whether the latest call was decided by what holds now."""
        found = get_snapshot_cache().find_cached("agent", self.agent.pk)
        return found is not None and found.generation == load_policy_generation(
            self.organization_id
        )

    def put_back(self, *models: Any) -> None:
        """Have the rows of these models as they were, or of all."""
        with transaction.atomic():
            for model in models or self.rows:
                rows = self.rows[model]
                now = {row.pk: values(row) for row in model._base_manager.all()}
                # What was made meanwhile would stand in the way of what was there before.
                if added := now.keys() - {row.pk for row in rows}:
                    model._base_manager.filter(pk__in=added)._raw_delete("default")
                for row in rows:
                    if now.get(row.pk) != values(row):
                        row.save_base(raw=True, force_insert=row.pk not in now)
            increment_generation(self.organization_id)


def values(row: Any) -> list[Any]:
    return [getattr(row, one.attname) for one in row._meta.concrete_fields]


def stored() -> dict[Any, list[Any]]:
    return {
        model: list(model._base_manager.all())
        for model in apps.get_models(include_auto_created=True)
        if model._meta.app_label in OURS and model._meta.managed
    }


@pytest.fixture
def caller(helper: Agent, upstream: RawHttp) -> Iterator[Caller]:
    mount = GatewayApplication()
    boss = factories.build_administrator(helper.organization)
    text = token_of(boss, Role.OWNER, calls_per_minute=MANY)
    Agent.objects.filter(pk=helper.pk).update(calls_per_minute=MANY)
    ToolPolicy.objects.filter(agent=helper).update(mode="denylist")  # so that rules hold
    wire = Wire(mount, text)
    wire.modern(AGENT, "tools/call", CALL)
    yield Caller(helper, wire, upstream)
    get_runtime().call(mount.stop)


def holds(
    caller: Caller,
    row: Row,
    what: str,
    change: Callable[[], object],
    *,
    seen: bool,
    alone: tuple[Any, ...] = (),
) -> None:
    """See a warm call, make a change, and see the next one be another, or decided anew.

    `alone` are the models whose rows it changes, where not all that hangs on them goes along.
    """
    before = caller.warm()
    change()
    after = caller()
    if seen:
        assert after != before, what
    else:
        assert after[:3] == before[:3] or row.unseen == "", what
        assert after != before or caller.decided_anew(), what
    caller.put_back(*alone)


def test_every_governed_model_is_covered() -> None:
    assert set(GOVERNED.values()) == ROWS.keys()


def edits() -> Iterator[tuple[Any, str]]:
    """Yield every model with the first way of writing, and every other way with some models.

    That each way makes decisions stale whatever the model is, `test_governed` shows.
    """
    first, *others = EDITS
    yield from ((model, first) for model in ROWS)
    yield from zip((model for model, row in ROWS.items() if row.edit), cycle(others))


def test_a_changed_row_applies_to_the_next_call(caller: Caller) -> None:
    for model, way in edits():
        one, row = row_of(model), ROWS[model]
        name = test_governed_rows._field(one)
        edit = row.edit or {name: getattr(one, name)}
        what = f"{model._meta.label} by {way}"
        change = partial(EDITS[way], one, edit)
        holds(caller, row, what, change, seen=bool(row.edit), alone=(model,))


def test_a_deleted_row_applies_to_the_next_call(caller: Caller) -> None:
    for (model, row), way in zip(ROWS.items(), cycle(REMOVALS)):
        one, what = row_of(model), f"{model._meta.label} by {way}"
        holds(caller, row, what, partial(REMOVALS[way], one), seen=row.removal)


def test_a_cascading_delete_applies_to_the_next_call(caller: Caller) -> None:
    gone: set[Any] = set()
    for model, row in ROWS.items():
        for name in test_governed_rows._parents_of(model):
            label = f"{model._meta.label} with {name}"
            if (model._meta.label, name) in test_governed_rows.READ_EACH_TIME:
                continue
            rows = model._default_manager.filter(**row.which).exclude(**{name: None})
            parent = getattr(rows.first(), name, None)
            if parent is None:  # the row that this call needs has none
                parent = getattr(model._default_manager.exclude(**{name: None}).first(), name)
            if parent in gone:  # with it, this went along already
                continue
            gone.add(parent)
            seen = isinstance(parent, Organization | Agent | Server)
            holds(caller, row, label, partial(test_governed_rows._delete_many, parent), seen=seen)
