"""Flow labels of names and configurations, and what a token that holds labels can't do.

A client with labels writes a name or a configuration, and another client or a session reads it.
"""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agents.flow_labels.text_labels import label_endpoint_reader, label_row_reader
from agents.models import Approval
from agents.sessions import services as sessions
from bonobot.accounts.models import Token
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.ledger.usage.aggregation import UsageLine
from bonobot.ledger.usage.report import UsageQuery, UsageReport, UsageReportEntry
from mcp_servers.flow_labels.store_labels import clear_store_labels
from mcp_servers.models import Definition, Server
from tests import factories, rest
from tests.agents.gateway.organization_server.conftest import PATH, Scene
from tests.agents.labeled_stores import APPROVAL_REQUIRED, Caller, declare_tool

pytestmark = pytest.mark.django_db(transaction=True)

AGENT_PATH = "/mcp/agents/helper"
WEB = {
    "name": "Ann was here",
    "transport_type": "http",
    "endpoint_config": {"url": "https://a.example.com/mcp"},
}
PRESET = {
    "name": "Ann was here",
    "transport_type": "http",
    "endpoint_config": {"url": "https://a.example.com/mcp"},
}
CHANNEL = {"name": "Ann was here", "kind": "webhook", "url": "https://hooks.example.com/a"}
PROVIDER = {"name": "Ann was here", "url": "https://a.example.com", "client_id": "a"}
BUDGETS = {"budgets": [{"unit": "calls", "period": "day", "limit": 4_711}]}
RULES = {"mode": "all", "deny": ["ann_was_here"]}


def create_server(client: Any) -> Any:
    return client.post("mcp-servers", WEB)


# What a client writes, and where another client reads it.
WAYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a new server": (create_server, "mcp-servers"),
    "the description of a server": (
        lambda client: client.patch(f"mcp-servers/{find_records().pk}", {"description": "Ann."}),
        "mcp-servers",
    ),
    "the URL of a server": (
        lambda client: client.patch(
            f"mcp-servers/{find_records().pk}",
            {"endpoint_config": {"url": "https://a.example.com/ann-was-here"}},
        ),
        "mcp-servers",
    ),
    "a preset": (lambda client: client.post("presets", PRESET), "presets"),
    "a channel": (
        lambda client: client.post("notification-channels", CHANNEL),
        "notification-channels",
    ),
    "a model": (
        lambda client: client.post(
            "model-endpoints", {"name": "Ann was here", "kind": "offline", "model": "offline"}
        ),
        "model-endpoints",
    ),
    "the name of an agent": (
        lambda client: client.patch("agents/helper", {"name": "Ann was here"}),
        "agents",
    ),
    "the policy of an agent": (
        lambda client: client.put("agents/helper/tool-policy", RULES),
        "agents/helper",
    ),
    "rules of an agent": (
        lambda client: client.put("agents/helper/tool-policy", RULES),
        "agents/helper/tool-policy",
    ),
    "draft rules of an agent": (
        lambda client: client.put("agents/helper/tool-policy/draft", RULES),
        "agents/helper/tool-policy/draft",
    ),
    "the name of the organization": (
        lambda client: client.patch("organization", {"name": "Ann was here"}),
        "organization",
    ),
    "rules of the organization": (
        lambda client: client.put("tool-policy", RULES),
        "tool-policy",
    ),
    "draft rules of the organization": (
        lambda client: client.put("tool-policy/draft", RULES),
        "tool-policy/draft",
    ),
    "budgets of an agent": (
        lambda client: client.put("agents/helper/budgets", BUDGETS),
        "agents/helper/budgets",
    ),
    "the name of a token": (
        lambda client: client.post("tokens", {"name": "Ann was here", "role": "member"}),
        "tokens",
    ),
    "an identity provider": (
        lambda client: client.post("identity-providers", PROVIDER),
        "identity-providers",
    ),
    "the address of an invitation": (
        lambda client: client.post("invitations", {"email": "ann@e.example", "role": "member"}),
        "invitations",
    ),
    "the reason of a rejection": (
        lambda client: client.post(
            f"mcp-servers/{find_records().pk}/definitions/{find_tool().pk}/reject",
            {"reason": "Ann was here", "digest": find_tool().digest},
        ),
        "mcp-servers/{records}/definitions/{tool}",
    ),
    "the reason of a denial": (
        lambda client: client.post(
            f"approvals/{Approval.objects.get().pk}/answer",
            {"answer": "deny", "message": "Ann was here"},
        ),
        "approvals",
    ),
    "the name of a deleted agent": (lambda client: rename_and_delete(client), "deletions"),
    "the reason of a halt": (lambda client: halt_and_resume(client), "audit"),
    "a name in the audit log": (create_server, "audit"),
    "a name in the export of servers": (
        create_server,
        "mcp-servers/export",
    ),
    "a name in the exported audit log": (
        create_server,
        "audit/export",
    ),
}


def halt_and_resume(client: Any) -> Any:
    assert client.post("organization/halt", {"reason": "Ann was here"}).status == 200
    return client.post("organization/resume")


def rename_and_delete(client: Any) -> Any:
    assert client.post("agents", {"name": "Ann was here"}).status == 201
    response = rest.as_administrator().delete("agents/ann-was-here")
    response.status = 200 if response.status == 204 else response.status
    return response


def find_records() -> Server:
    return Server.objects.get(slug="records")


def find_tool() -> Definition:
    return find_records().definitions.get(name="pending")


def fill_path(path: str) -> str:
    return path.format(records=find_records().pk, tool=find_tool().pk)


def prepare_objects(scene: Scene) -> None:
    """Create what some of the ways change."""
    factories.create_approval(scene.world.helper)
    declare_tool(scene.world.records, "pending", {"description": "Waits for a review."})


@pytest.mark.parametrize("way", WAYS)
def test_a_client_gets_the_labels_of_a_name_or_configuration_it_reads(
    scene: Scene, way: str
) -> None:
    write, path = WAYS[way]
    prepare_objects(scene)
    scene.program.read_labeled_data()
    response = write(scene.rest)
    assert response.status in (200, 201), response
    reader, text = scene.world.issue_organization_token()
    scene.world.clear_caller_labels()
    assert rest.RestClient(text).get(fill_path(path)).status == 200
    assert reader.try_to_send() == APPROVAL_REQUIRED


def test_a_client_gets_no_labels_of_what_a_client_without_labels_wrote(scene: Scene) -> None:
    prepare_objects(scene)
    reader, text = scene.world.issue_organization_token()
    written = set()
    for way, (write, path) in WAYS.items():
        if write not in written:
            written.add(write)
            response = write(scene.rest)
            assert response.status in (200, 201), (way, response)
        assert rest.RestClient(text).get(fill_path(path)).status == 200, way
    assert reader.try_to_send() == ""  # labels would have stayed


def test_a_caller_without_a_session_gets_the_labels_of_the_reason_of_a_denial(
    scene: Scene,
) -> None:
    rules = {"mode": "all", "ask": ["mcp_office_search_web"]}
    assert rest.as_administrator().put("agents/helper/tool-policy", rules).status == 200
    caller, _text = scene.world.issue_organization_token()
    assert caller.use("mcp_office_search_web") == APPROVAL_REQUIRED
    scene.program.read_labeled_data()
    path = f"approvals/{Approval.objects.get().pk}/answer"
    assert scene.rest.post(path, {"answer": "deny", "message": "Ann was here"}).status == 200
    scene.world.clear_caller_labels()
    assert caller.try_to_send() == ""
    assert caller.use("mcp_office_search_web") == "approval_denied"
    assert caller.try_to_send() == APPROVAL_REQUIRED


def test_a_session_starts_with_the_labels_of_its_servers_names(scene: Scene) -> None:
    scene.program.read_labeled_data()
    path = f"mcp-servers/{find_records().pk}"
    assert scene.rest.patch(path, {"description": "Ann was here"}).status == 200
    session = sessions.start_session(scene.world.administrator, scene.world.helper, "x")
    caller = Caller(scene.world.administrator, scene.world.helper, session)
    assert caller.try_to_send() == APPROVAL_REQUIRED

    clear_store_labels(factories.create_member(scene.world.acme, Role.REVIEWER), find_records())
    session = sessions.start_session(scene.world.administrator, scene.world.helper, "x")
    caller = Caller(scene.world.administrator, scene.world.helper, session)
    assert caller.try_to_send() == ""


def list_tools(scene: Scene, text: str) -> None:
    assert scene.gateway_client.modern(PATH, "tools/list", token=text).result


def list_registry(scene: Scene, text: str) -> None:
    path = f"/registry/{scene.world.acme.slug}/v0.1/servers"
    response = Client().get(path, headers={"Authorization": f"Bearer {text}"})
    assert response.status_code == 200
    assert response.json()["servers"]


def read_greeting(scene: Scene, text: str) -> None:
    assert scene.gateway_client.modern(AGENT_PATH, "server/discover", token=text).result


def list_tools_of_an_agent(scene: Scene, text: str) -> None:
    assert scene.gateway_client.modern(AGENT_PATH, "tools/list", token=text).result


def list_prompts_of_an_agent(scene: Scene, text: str) -> None:
    assert scene.gateway_client.modern(AGENT_PATH, "prompts/list", token=text).result


def get_tools_of_an_agent(scene: Scene, text: str) -> None:
    assert rest.RestClient(text).get("agents/helper/tools").status == 200


@pytest.mark.parametrize("group", ["agent", "server", "model"])
def test_a_client_gets_the_labels_of_the_names_in_a_usage_report(scene: Scene, group: str) -> None:
    ids = {"agent": str(scene.world.helper.pk), "server": str(scene.world.records.pk)}
    scene.program.read_labeled_data()
    for path in ("agents/helper", f"mcp-servers/{ids['server']}"):
        assert scene.rest.patch(path, {"name": "Ann was here"}).status == 200
    endpoint = {"name": "Ann was here", "kind": "offline", "model": "offline"}
    assert scene.rest.post("model-endpoints", endpoint).status == 201
    scene.world.clear_caller_labels()
    reader, _text = scene.world.issue_organization_token()
    line = UsageReportEntry(ids.get(group, ""), "Ann was here", "", UsageLine())
    now = timezone.now()
    report = UsageReport(UsageQuery(by=group), now, now, UsageLine(), [line], complete=True)
    label_row_reader(reader.principal, "GET", [report])
    assert reader.try_to_send() == APPROVAL_REQUIRED


@pytest.mark.parametrize("read", [read_greeting, list_tools_of_an_agent, list_prompts_of_an_agent])
def test_a_client_gets_the_labels_of_a_servers_name_at_an_agents_endpoint(
    scene: Scene, read: Callable[[Scene, str], None]
) -> None:
    path = f"mcp-servers/{find_records().pk}"
    reader, text = scene.world.issue_organization_token()
    read(scene, text)
    assert reader.try_to_send() == ""
    scene.program.read_labeled_data()
    assert scene.rest.patch(path, {"name": "Ann was here"}).status == 200
    scene.world.clear_caller_labels()
    read(scene, text)
    assert reader.try_to_send() == APPROVAL_REQUIRED


def test_a_token_reads_a_list_of_an_endpoint_with_a_fixed_number_of_queries(scene: Scene) -> None:
    """Assignments, servers, and cells."""
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as queries:
            label_endpoint_reader(scene.program.principal, agent_id=scene.world.helper.pk)
        counts.append(len(queries))
        scene.world.create_store(f"more{len(counts)}")
    assert counts == [3, 3]


@pytest.mark.parametrize("read", [list_tools, list_registry, get_tools_of_an_agent])
def test_a_client_gets_the_labels_of_a_description_in_a_list(
    scene: Scene, read: Callable[[Scene, str], None]
) -> None:
    scene.world.acme.registry = "token"
    scene.world.acme.save()
    scene.program.read_labeled_data()
    assert scene.rest.patch("agents/helper", {"description": "Ann was here"}).status == 200
    reader, text = scene.world.issue_organization_token()
    scene.world.clear_caller_labels()
    read(scene, text)
    assert reader.try_to_send() == APPROVAL_REQUIRED


def test_a_token_that_a_client_with_labels_creates_starts_with_them(scene: Scene) -> None:
    scene.program.read_labeled_data()
    response = scene.rest.post("tokens", {"name": "clean", "role": "owner"})
    assert response.status == 201
    path = f"tokens/{response.json['id']}/flow-labels"
    labels = rest.as_administrator().get(path).json["flow_labels"]
    assert labels == ["private_data", "untrusted_content"]


# How a client with labels could remove them, or do without.
CLEARINGS: dict[str, Callable[[Scene], Any]] = {
    "its own": lambda scene: scene.rest.delete(f"tokens/{get_token(scene).pk}/flow-labels"),
    "those of its agent": lambda scene: scene.rest.delete("agents/helper/flow-labels"),
    "those of a server's data": lambda scene: scene.rest.delete(
        f"mcp-servers/{find_records().pk}/store-labels"
    ),
    "those of an agent's data": lambda scene: scene.rest.delete("agents/helper/store-labels"),
    "those of a tool": lambda scene: scene.rest.put(
        f"mcp-servers/{Server.objects.get(slug='office').pk}/labels",
        {"names": ["post_message"], "labels": []},
    ),
}


def get_token(scene: Scene) -> Token:
    return Token.objects.get(pk=scene.program.principal.id)


@pytest.mark.parametrize("way", CLEARINGS)
def test_a_token_with_labels_cant_clear_labels(scene: Scene, way: str) -> None:
    scene.program.read_labeled_data()
    refusal = CLEARINGS[way](scene)
    assert (refusal.status, refusal.code) == (403, "labeled_caller"), refusal
    assert scene.program.try_to_send() == APPROVAL_REQUIRED


@pytest.mark.parametrize("way", CLEARINGS)
def test_a_token_without_labels_can_clear_labels(scene: Scene, way: str) -> None:
    assert CLEARINGS[way](scene).status in (200, 204)


def test_a_person_and_another_token_clear_a_tokens_labels(scene: Scene) -> None:
    path = f"tokens/{get_token(scene).pk}/flow-labels"
    _token, text = create_token(scene.world.administrator, name="other", role=Role.OWNER)
    for client in (rest.as_administrator(), rest.RestClient(text)):
        scene.program.read_labeled_data()
        assert client.delete(path).status == 204
        assert client.delete("agents/helper/flow-labels").status == 204
        assert scene.program.try_to_send() == ""


def test_a_token_cant_approve_its_own_call_that_its_labels_held(scene: Scene) -> None:
    scene.program.read_labeled_data()
    assert scene.program.try_to_send() == APPROVAL_REQUIRED
    approval = Approval.objects.get()
    path = f"approvals/{approval.pk}/answer"
    refusal = scene.rest.post(path, {"answer": "approve"})
    assert (refusal.status, refusal.code) == (403, "own_call")
    approval.refresh_from_db()
    assert approval.state == Approval.State.WAITING
    assert rest.as_administrator().post(path, {"answer": "approve"}).status == 200


def test_a_person_who_rewrites_settings_or_rules_of_the_organization_clears_their_labels(
    scene: Scene,
) -> None:
    """Settings and rules apart: a person who saves the one hasn't read the other."""
    person = rest.as_administrator()
    scene.program.read_labeled_data()
    assert scene.rest.patch("organization", {"name": "Ann was here"}).status == 200
    assert scene.rest.put("tool-policy", RULES).status == 200
    scene.world.clear_caller_labels()

    assert person.patch("organization", {"name": "Acme"}).status == 200
    assert read_as_another_client(scene, "tool-policy") == APPROVAL_REQUIRED
    assert person.put("tool-policy", {"mode": "all"}).status == 200
    assert read_as_another_client(scene, "tool-policy") == ""
    assert read_as_another_client(scene, "organization") == ""


def test_a_token_without_labels_keeps_those_of_the_organization(scene: Scene) -> None:
    scene.program.read_labeled_data()
    assert scene.rest.put("tool-policy", RULES).status == 200
    scene.world.clear_caller_labels()
    _reader, text = scene.world.issue_organization_token()
    assert rest.RestClient(text).put("tool-policy", {"mode": "all"}).status == 200
    assert read_as_another_client(scene, "tool-policy") == APPROVAL_REQUIRED


def read_as_another_client(scene: Scene, path: str) -> str:
    reader, text = scene.world.issue_organization_token()
    assert rest.RestClient(text).get(path).status == 200
    return reader.try_to_send()
