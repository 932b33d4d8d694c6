"""Everything that decisions depend on: each change, made in any way, applies to the next call."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.db import connection, transaction
from django.db.models import CASCADE, SET_NULL, F
from django.test.utils import CaptureQueriesContext

from agents.assignments import set_callable_agents
from agents.budgets.services import BudgetLine, set_budgets
from agents.calls.pipeline import CallRequest, make_call
from agents.calls.snapshots import get_snapshot_cache
from agents.models import Agent, ModelEndpoint, SessionApproval
from agents.policies.services import PolicySpec, set_policy
from agents.services import attach_server
from agents.sessions.services import start_session
from agents.skills import SkillSpec, save_skill
from benchmarks.governed_call_stages import count_operations
from bonobot.accounts.models import Organization, User
from bonobot.accounts.models.abstract_models import Governed
from bonobot.accounts.roles import Role, TokenScope
from bonobot.accounts.tokens.oauth_grants import create_grant
from bonobot.accounts.tokens.services import create_token
from bonobot.core.runtime import get_runtime
from bonobot.ledger.policy_generations import load_policy_generation
from bonobot.ledger.writer.committer import UNTOUCHED_READS
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.models import Preset, Secret, Server
from tests import factories
from tests.parts import ROOT
from tests.processes import build_environment
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest

GOVERNED = {model._meta.label: model for model in apps.get_models() if issubclass(model, Governed)}
# A snapshot also reads the generation itself, and the labels of skills: they are written with them.
UNGOVERNED_TABLES = {"agent": {"ledger_head", "ledger_flowcell"}, "server": {"ledger_head"}}
# Parents that aren't governed although governed rows are deleted with them, and why not.
READ_EACH_TIME = {
    ("agents.SessionApproval", "session"): "session approvals are read for each call",
}
# An endpoint that can be deleted; a preset that a server was created from.
FILTERS: dict[Any, dict[str, Any]] = {
    ModelEndpoint: {"agents": None},
    Preset: {"organization__isnull": False},
}
TOOL = "mcp_web_echo"

pytestmark = pytest.mark.django_db(transaction=True)


def _answer(request: RecordedRequest) -> bytes:
    if request.method == "server/discover":
        return raw_http_server.discovery(request)
    tools = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    data = {"content": [{"type": "text", "text": "Hello"}]}
    return raw_http_server.result(request, tools if request.method == "tools/list" else data)


@pytest.fixture
def web() -> Iterator[str]:
    """The URL of a server in this process."""
    server = RawHttp(_answer).listening()
    yield get_runtime().call(server.__aenter__).url
    get_runtime().call(server.__aexit__, None, None, None)
    get_writer().close()


@pytest.fixture
def helper(transactional_db: None, web: str) -> Agent:
    """An agent of an organization that has at least one row of every governed model."""
    acme = factories.create_organization()
    administrator = factories.build_administrator(acme)
    # A test may call more often than the default rate allows when it runs quickly.
    agent = factories.create_agent(acme, calls_per_minute=1_000_000)
    server = factories.approve_server(acme, factories.create_http_server(acme, web), agent)
    preset = Preset.objects.create(organization=acme, slug="web", name="Web", transport_type="http")
    Server.objects.filter(pk=server.pk).update(preset=preset)
    Secret.objects.create(
        organization=acme, server=server, placement="header", name="X-Key", value="k-e-y-1234"
    )
    approve_definitions(administrator, server)
    ModelEndpoint.objects.create(organization=acme, name="Spare", kind="offline", model="offline")
    attach_server(administrator, agent, server)
    set_policy(administrator, agent, PolicySpec("all", deny=("mcp_web_other",)))
    set_budgets(administrator, agent, [BudgetLine("calls", "month", 1_000)])
    set_budgets(administrator, server, [BudgetLine("calls", "month", 1_000)])
    save_skill(administrator, SkillSpec(name="tell", text="Hello", agents=[agent.slug]))
    set_callable_agents(administrator, agent, [agent.slug])
    factories.create_workflow(agent)
    create_token(administrator, name="ci", role=Role.OPERATOR)
    factories.create_issuer(acme, "https://login.example.com")
    create_grant(
        User.objects.get(pk=factories.create_member(acme, Role.OPERATOR).id),
        acme,
        role=Role.MEMBER,
        resource=f"{settings.BONOBOT_URL}/mcp",
        client_id="ide",
        client="IDE",
        scopes=[TokenScope.AGENTS],
    )
    SessionApproval.objects.create(
        organization=acme,
        agent=agent,
        session=start_session(administrator, agent, "Hi"),
        own_name="echo",
    )
    get_snapshot_cache().load("agent", agent.pk)  # stores the names of the tools
    return agent


def get_row(model: Any) -> Any:
    """Return a row; for a new governed model, add one to `helper`."""
    row = model.objects.filter(**FILTERS.get(model, {})).order_by("pk").first()
    assert row is not None, f"`helper` has no {model._meta.label}: add one to the fixture"
    return row


def _insert_again(row: Any) -> None:
    """Insert a row in bulk after deleting it without its references and without signals."""
    model: Any = type(row)
    with transaction.atomic():
        model._base_manager.filter(pk=row.pk)._raw_delete("default")
        model.objects.bulk_create([row])


def _delete(row: Any) -> None:
    _free(row)
    row.delete()


def _delete_many(row: Any) -> None:
    _free(row)
    type(row).objects.filter(pk=row.pk).delete()


def _free(row: Any) -> None:
    """Delete the agents of an organization, which protect its models."""
    if isinstance(row, Organization):
        for agent in Agent.objects.all():
            agent.delete()


WRITES: dict[str, Callable[[Any], object]] = {
    "save": lambda row: row.save(),
    "delete": _delete,
    "update": lambda row: type(row).objects.filter(pk=row.pk).update(id=F("id")),
    "delete many": _delete_many,
    "bulk create": _insert_again,
    "bulk update": lambda row: type(row).objects.bulk_update([row], [_field(row)]),
    "update or create": lambda row: type(row).objects.update_or_create(
        pk=row.pk, defaults={_field(row): getattr(row, _field(row))}
    ),
}


def _field(row: Any) -> str:
    """Return the name of a field that isn't an observed one."""
    return next(
        field.name
        for field in row._meta.concrete_fields
        if not (field.primary_key or field.is_relation or field.name in row.observed_fields)
    )


@contextmanager
def _check_generation_increment(agent: Agent, label: str) -> Iterator[None]:
    """Check that the block increments the generation, and roll back."""
    with transaction.atomic():
        before = load_policy_generation(agent.organization_id)
        yield
        assert load_policy_generation(agent.organization_id) > before, label
        transaction.set_rollback(True)


@pytest.mark.parametrize("write", WRITES)
def test_every_kind_of_write_invalidates_snapshots(helper: Agent, write: str) -> None:
    for label, model in GOVERNED.items():
        with _check_generation_increment(helper, label):
            WRITES[write](get_row(model))


def test_cascading_deletes_invalidate_snapshots(helper: Agent) -> None:
    for label, model in GOVERNED.items():
        for name in _parents_of(model):
            rows = model._default_manager.filter(**FILTERS.get(model, {}))
            row = rows.exclude(**{name: None}).first()
            assert row is not None, f"`helper` has no {label} with `{name}`: add one"
            parent = getattr(row, name)
            if (label, name) in READ_EACH_TIME:
                assert not isinstance(parent, Governed)
                continue
            with _check_generation_increment(helper, f"{label}.{name}"):
                _delete_many(parent)


def _parents_of(model: Any) -> list[str]:
    return [
        field.name
        for field in model._meta.concrete_fields
        if field.is_relation and field.remote_field.on_delete in (CASCADE, SET_NULL)
    ]


@pytest.mark.parametrize("kind", ["agent", "server"])
def test_a_snapshot_reads_only_governed_rows(helper: Agent, kind: str) -> None:
    key = helper.pk if kind == "agent" else get_row(Server).pk
    tables = {model._meta.db_table for model in apps.get_models()}
    with CaptureQueriesContext(connection) as queries:
        get_snapshot_cache().load(kind, key)
    tables_read = {
        table
        for query in queries
        for table in tables
        if f'"{table}"' in query["sql"] and query["sql"].startswith("SELECT")
    }
    governed_tables = {model._meta.db_table for model in GOVERNED.values()}
    assert tables_read - governed_tables == UNGOVERNED_TABLES[kind]


WRITER_SCRIPT = """
import sys, django
django.setup()
from django.apps import apps
from django.db.models import F
for line in sys.stdin:
    label, pk = line.split()
    model = apps.get_model(label)
    model.objects.filter(pk=pk).update(id=F("id"))
    print("done", flush=True)
"""


@pytest.fixture
def write_elsewhere(helper: Agent) -> Iterator[Callable[[Any], None]]:
    """Return a function that saves a row unchanged in another process."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER_SCRIPT],
        cwd=ROOT,
        env=build_environment(
            {
                "DJANGO_SETTINGS_MODULE": str(settings.SETTINGS_MODULE),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            }
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def write(row: Any) -> None:
        process.stdin.write(f"{row._meta.label} {row.pk}\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        assert process.stdout.readline() == "done\n"  # type: ignore[union-attr]

    yield write
    process.stdin.close()
    process.wait(30)
    process.stdout.close()


def _call(helper: Agent, **target: Any) -> str:
    administrator = factories.build_administrator(helper.organization)
    fields = target or {"agent_id": helper.pk, "tool": TOOL}
    request = CallRequest(
        principal=administrator, arguments={}, via="rest", holder="test", **fields
    )
    return get_runtime().call(make_call, request).outcome


def test_a_change_of_another_process_applies_to_the_next_call(
    helper: Agent, write_elsewhere: Callable[[Any], None]
) -> None:
    assert _call(helper) == "ok"
    for model in GOVERNED.values():
        before = get_snapshot_cache().find_cached("agent", helper.pk)
        assert before is not None
        write_elsewhere(get_row(model))
        assert _call(helper) == "ok"
        current = get_snapshot_cache().find_cached("agent", helper.pk)
        assert current is not None
        assert (
            current.generation == load_policy_generation(helper.organization_id) > before.generation
        )


@pytest.mark.parametrize("through", ["an agent", "the server by itself"])
def test_a_repeated_call_queries_only_the_ledger(helper: Agent, through: str) -> None:
    target: dict[str, Any] = {"agent_id": helper.pk, "tool": TOOL}
    if through == "the server by itself":
        target = {"server_id": Server.objects.get(name="web").pk, "tool": "echo"}
    # Writes of the fixture make the chain a shared one for a while.
    for _ in range(2 + UNTOUCHED_READS):
        assert _call(helper, **target) == "ok"
    with count_operations() as counter:
        assert _call(helper, **target) == "ok"
    counts = counter.counts
    assert counts["other queries"] == counts["hops to an ORM thread"] == 0
    assert counts["hops to another thread"] == 0
    assert counts["items sent to the writer"] == counts["ledger transactions"] == 2
    # Two transactions. On SQLite, each has three statements (begin, compare, commit), then the
    # rates, of which the server has none of its own. On PostgreSQL, each is a pipeline, in which
    # the head is moved if the cached rows are current, and each row has a statement of its own.
    sqlite, has_rates = connection.vendor == "sqlite", through == "an agent"
    assert counts["ledger statements"] == (6 + has_rates if sqlite else 6 + 3 * has_rates)
    # The row and budgets, each twice; on SQLite the head, too.
    assert counts["ledger statements of many rows"] == (6 if sqlite else 4)
