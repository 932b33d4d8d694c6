"""What a principal may see and do: principal × interface × object × verb, the same everywhere.

The expectation is computed from `KINDS` and `Case`, and compared with REST, the gateway and the
admin. Agents without access contain the word `zebra`, sessions of others `otter`: a leak shows it.

`TEST_SUITE=whole`, which CI sets, compares people and tokens of each role, and otherwise of those
that differ most.
"""

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_django
from django.db import transaction
from django.db.models import F
from django.test import Client
from django.urls import reverse

from agents.admin import command_palette
from agents.admin.navigation import Navigation
from agents.gateway import server_registry
from agents.gateway.organization_server import handlers as organization_server_handlers
from agents.gateway.organization_server import management_tools
from agents.gateway.organization_server import resources as organization_server_resources
from agents.gateway.organization_server.handlers import find_skill
from agents.gateway.routes import GatewayAddress, find_target
from agents.gateway.transports import count_declarations
from agents.models import (
    AccessRequest,
    Agent,
    Approval,
    ElicitationRequest,
    Note,
    Recording,
    Session,
    Skill,
    Workflow,
)
from agents.skills import SkillSpec, save_skill
from agents.workflows.services import WorkflowSpec, save_workflow
from bonobot.accounts.external_issuers import jwt_validation
from bonobot.accounts.models import Membership, Organization, Provider, User
from bonobot.accounts.principals import (
    InsufficientScope,
    Principal,
    build_token_principal,
    build_user_principal,
)
from bonobot.accounts.roles import Action, Role, TokenScope
from bonobot.accounts.tokens import oauth_grants
from bonobot.accounts.tokens.services import create_token
from bonobot.core.problems import Forbidden, NotFound, Problem
from bonobot.core.runtime import Runtime
from mcp_servers.models import Definition, Server
from tests import admin_client, factories, rest
from tests.bonobot.principal_kinds import KINDS, PARTS_OF_OTHERS, Kind
from tests.bonobot.test_api_matrix import OPERATIONS as REST_OPERATIONS
from tests.bonobot.test_api_matrix import ROUTES, fill_path, list_path_parameters
from tests.inventory import create_everything, create_own_objects
from tests.screens import ADDRESSES, build_arguments, render_without_signals, share_rows
from tests.selection import WHOLE

NEAR, FAR, OTHERS = "alpaca", "zebra", "otter"
# Lists and single objects of the organization that every principal with the permission sees alike;
# their texts are searched for objects out of reach.
WITHOUT_OBJECTS = {
    "audit/export": "the entries of the list",
    "usage/export": "the rows of the report",
    "mcp-servers/export": "the servers of the list",
    "mcp-servers/import": "the progress of one's own import",
    "presets": "shared by all organizations, too",
    "mcp-servers": "a page of other columns",
    "me": "oneself",
    "authorized-clients": "one's own",
    "first-run": "the state of a page",
    "organization": "the settings",
    "tool-policy": "the policy of the organization",
    "tool-policy/draft": "its draft",
    "tool-policy/draft/shadow": "its report",
    "budgets": "those of the organization",
}
ROLES = tuple(Role) if WHOLE else (Role.OPERATOR, Role.AUDITOR, Role.MEMBER)
READERS = (Role.OWNER, Role.OPERATOR, Role.REVIEWER, Role.AUDITOR)
GATEWAY_SCOPES = (TokenScope.TOOLS, TokenScope.AGENTS, TokenScope.MANAGE)


@dataclass
class Case:
    """A principal and its credentials; `reachable` are the agents it has access to."""

    label: str
    principal: Principal
    reachable: frozenset[str]
    text: str = ""
    user: User | None = None

    @property
    def is_bound(self) -> bool:
        """Whether the principal is limited to some agents."""
        return bool(self.principal.agent_ids)

    def opens(self, kind: Kind) -> bool:
        """Return whether the table allows objects of this kind."""
        if self.is_bound and kind.closed:
            return False
        return any(self.principal.may(action) for action in kind.opens)

    def can_see(self, kind: Kind, word: str, *, own: bool) -> bool:
        """Return whether an object of the agent of `word` is expected to be visible."""
        if kind.closed or not self.opens(kind):
            return self.opens(kind)
        if own and self.user is not None and not self.principal.may(Action.VIEW):
            return True  # people can always read their own sessions
        if kind.personal and not self.principal.may(Action.VIEW):
            return own and word in self.reachable
        return word in self.reachable

    @property
    def rest(self) -> rest.RestClient | None:
        """Return its REST client, if it has access."""
        return rest.RestClient(self.text, self.user) if self.text or self.user else None


@dataclass
class FilledOrganization:
    """An organization with two agents and one of everything for each, by their words."""

    organization: Organization
    agents: dict[str, Agent]
    ids: dict[str, dict[str, str]]
    pool: str
    cases: dict[str, list[Case]]


def fill_agent(organization: Organization, word: str) -> dict[str, str]:
    """Create one of everything for an agent, with the word in all of it."""
    ids = create_everything(organization, f"-{word}")
    text = f"About {word} of {OTHERS}."
    Agent.objects.filter(pk=ids["agent_id"]).update(name=word, description=f"The {word}.")
    Server.objects.filter(pk=ids["server_id"]).update(name=word)
    Note.objects.filter(pk=ids["note_id"]).update(title=word, text=f"On {word}.")
    Session.objects.filter(agent_id=ids["agent_id"]).update(title=text)
    Approval.objects.filter(pk=ids["approval_id"]).update(reason=text, arguments={"a": text})
    ElicitationRequest.objects.filter(pk=ids["request_id"]).update(message=text)
    AccessRequest.objects.filter(pk=ids["access_request_id"]).update(
        agent_id=ids["agent_id"], reason=text
    )
    Recording.objects.filter(pk=ids["recording_id"]).update(title=text)
    Provider.objects.filter(pk=ids["provider_id"]).update(name=f"Login {ids['provider_id']}")
    return ids


def list_people_cases(organization: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield a person of each role with access to one agent."""
    for role in ROLES:
        user = User.objects.get(pk=factories.create_member(organization, role, f"person-{role}").id)
        agents[NEAR].members.add(user)
        reachable = frozenset(agents) if role in READERS else frozenset({NEAR})
        yield Case(f"person {role}", build_user_principal(user, organization), reachable, user=user)


def list_token_cases(organization: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield a token of each role for one agent, and of two roles one for all agents."""
    administrator = factories.build_administrator(organization)
    for role, names in [
        *((role, (NEAR,)) for role in ROLES),
        (Role.MEMBER, ()),
        (Role.AUDITOR, ()),
    ]:
        ids = [agents[name].pk for name in names]
        token, text = create_token(administrator, name=f"{role} {names}", role=role, agent_ids=ids)
        reachable = frozenset(names) or frozenset(agents if role in READERS else ())
        yield Case(f"token {role} {names}", build_token_principal(token), reachable, text)


def list_client_cases(organization: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield OAuth clients; some of members name an agent that the member has no access to."""
    choices = [
        *product((Role.MEMBER, Role.OPERATOR), [GATEWAY_SCOPES], ((), (NEAR,), (NEAR, FAR))),
        *product([Role.MEMBER], [(scope,) for scope in GATEWAY_SCOPES], [(NEAR, FAR)]),
    ]
    for number, (role, scopes, names) in enumerate(choices):
        user = User.objects.create_user(f"giver-{number}")
        Membership.objects.create(organization=organization, user=user, role=role)
        agents[NEAR].members.add(user)
        grant = oauth_grants.create_grant(
            user,
            organization,
            role=role,
            resource="https://bonobot.example.com/mcp",
            client_id="ide",
            client="IDE",
            scopes=scopes,
            agent_ids=[agents[name].pk for name in names],
        )
        reachable = frozenset(agents) if role == Role.OPERATOR else frozenset({NEAR})
        reachable &= frozenset(names) if names or role == Role.MEMBER else reachable
        yield Case(f"program {role} {scopes} {names}", build_token_principal(grant), reachable)


def list_issuer_cases(organization: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield tokens of external issuers."""
    choices = [
        *product((Role.MEMBER, Role.AUDITOR), [TokenScope.AGENTS], ((), (NEAR,))),
        *product((Role.MEMBER, Role.AUDITOR), (TokenScope.TOOLS, TokenScope.MANAGE, ""), [(NEAR,)]),
    ]
    for number, (role, scope, names) in enumerate(choices):
        ids = [str(agents[name].pk) for name in names]
        fields = {"role": role, "agent_ids": ids, "audience": "bonobot"}
        url = f"https://issuer{number}.example.com"
        row = factories.create_issuer(organization, url, f"Issuer {number}", **fields)
        principal = jwt_validation.build_issuer_principal(
            row, {"sub": str(uuid4()), "scope": scope}
        )
        reachable = frozenset(names) or frozenset(agents if role in READERS else ())
        yield Case(f"issuer {role} {scope} {names}", principal, reachable)


MAKERS = {
    "people": list_people_cases,
    "tokens": list_token_cases,
    "programs": list_client_cases,
    "strangers": list_issuer_cases,
}


@pytest.fixture(scope="module")
def shared_organization(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[FilledOrganization]:
    """Fill an organization for all tests of this module."""
    with share_rows(django_db_blocker):
        organization = factories.create_organization()
        ids = {word: fill_agent(organization, word) for word in (NEAR, FAR)}
        agents = {word: Agent.objects.get(pk=ids[word]["agent_id"]) for word in ids}
        administrator = factories.build_administrator(organization)
        both = [agent.slug for agent in agents.values()]
        save_skill(administrator, SkillSpec(name="shared", text="Hello", agents=both))
        flow = Workflow.objects.get(pk=ids[NEAR]["workflow_id"])
        save_workflow(administrator, WorkflowSpec(name=flow.name, agents=both), flow)
        cases = {name: list(make(organization, agents)) for name, make in MAKERS.items()}
        pool = Server.objects.create(
            organization=organization,
            scope_id=organization.pk,
            name="pool",
            slug="pool",
            transport_type="http",
        )
        yield FilledOrganization(organization, agents, ids, pool.slug, cases)


@pytest.fixture
def example(
    shared_organization: FilledOrganization, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FilledOrganization]:
    """Return the organization; changes are rolled back. The gateway runs ORM code synchronously."""

    async def orm(_self: Runtime, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    monkeypatch.setattr(Runtime, "run_orm", orm)
    with transaction.atomic():
        yield shared_organization
        transaction.set_rollback(True)


@contextmanager
def roll_back() -> Iterator[None]:
    """Roll back all changes of the block."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def run_coroutine(coroutine: Awaitable[Any]) -> Any:
    """Return the result of a coroutine that never suspends."""
    try:
        next(coroutine.__await__())
    except StopIteration as ended:
        return ended.value
    raise AssertionError("the coroutine suspended")


def select_agents(case: Case, example: FilledOrganization) -> list[tuple[str, Agent]]:
    """Return the agents by their words; one is enough for a principal that has all."""
    everything_seen = case.reachable == example.agents.keys()
    return [item for item in example.agents.items() if item[0] == FAR or not everything_seen]


def iterate_objects(
    example: FilledOrganization, case: Case
) -> Iterator[tuple[str, Kind, str, dict[str, str], bool]]:
    """Yield every object: its kind, the agent's word, its IDs, and whether the principal owns
    it."""
    for word, agent in select_agents(case, example):
        own = create_own_objects(case.principal, agent, word)
        for name, kind in KINDS.items():
            yield name, kind, word, example.ids[word], False
            if kind.personal:
                yield name, kind, word, example.ids[word] | own, True


def check_rest(
    client: rest.RestClient, kind: Kind, ids: dict[str, str], lists: dict[str, set[str]]
) -> tuple[bool, bool]:
    """Return whether REST shows and lists an object; `lists` caches the lists."""
    path = (kind.path or kind.listing).replace("{}", ids.get(kind.part, "")).format_map(ids)
    response = client.get(path)
    assert response.status in (200, 403, 404), response
    if not kind.listing:
        return response.status == 200, response.status == 200
    listing = kind.listing.format_map(ids)
    if listing not in lists:
        list_response = client.get(listing)
        assert list_response.status in (200, 403, 404), list_response
        rows = list_response.json["results"] if list_response.status == 200 else ()
        lists[listing] = {row["id"] for row in rows}
    return response.status == 200, ids[kind.part] in lists[listing]


def can_read_resource(principal: Principal, uri: str) -> bool:
    try:
        return organization_server_resources.read_resource_contents(principal, uri) is not None
    except (NotFound, Forbidden):
        return False


def check_gateway(case: Case, kind: Kind, ids: dict[str, str]) -> dict[str, bool]:
    """Return which methods of the organization's endpoint show an object."""
    number, principal = ids.get(kind.part, ""), case.principal
    uri = organization_server_resources.build_uri(kind.resource, number)
    return {
        "reads": can_read_resource(principal, uri),
        "follows": uri in organization_server_resources.load_resource_states(principal, [uri]),
    }


def test_every_object_of_rest_and_every_part_is_in_the_table() -> None:
    """A new kind of object needs a row, so that it can't be left out of the comparisons."""
    parts = {part for route, _method in REST_OPERATIONS for part in list_path_parameters(route)}
    covered = {kind.part for kind in KINDS.values()} | PARTS_OF_OTHERS.keys()
    assert parts - covered == set(), "add a row to KINDS, or a reason to PARTS_OF_OTHERS"
    shown = {route for route, method in REST_OPERATIONS if method == "GET" and "<" not in route}
    listed = {kind.listing.partition("?")[0] for kind in KINDS.values()} | {
        kind.path for kind in KINDS.values()
    }
    assert shown - listed - WITHOUT_OBJECTS.keys() == set(), "add a row to KINDS"


@pytest.mark.parametrize("maker", MAKERS)
def test_every_object_is_visible_exactly_where_the_table_says(
    example: FilledOrganization, maker: str
) -> None:
    faults = []
    for case in example.cases[maker]:
        client, lists = case.rest, dict[str, set[str]]()
        for name, kind, word, ids, own in list(iterate_objects(example, case)):
            expected = case.can_see(kind, word, own=own)
            results: dict[str, bool] = {}
            if client:
                results["shown by REST"], results["listed by REST"] = check_rest(
                    client, kind, ids, lists
                )
            if kind.resource:
                results |= check_gateway(case, kind, ids)
            prefix = "own " if own else ""
            if name == "run" and own and word not in case.reachable:
                results.pop("listed by REST", None)  # below a workflow that isn't visible any more
            faults += [
                f"{case.label}: {prefix}{name} of {word} {surface}: {actual}"
                for surface, actual in results.items()
                if actual != expected
            ]
    assert not faults, "\n".join(faults)


def iterate_gateway_texts(case: Case, example: FilledOrganization) -> Iterator[tuple[str, str]]:
    """Yield every response of the organization's endpoint for a principal, by its source."""
    principal = case.principal
    for kind, lists in organization_server_handlers.LIST_FUNCTIONS.items():
        yield f"list of {kind}", json.dumps(lists(principal))
    tools = organization_server_handlers.load_tools(principal)
    for template, prefix in product(
        organization_server_handlers.KINDS_BY_TEMPLATE, ("", FAR[0], "helper", "tell")
    ):
        params = {
            "ref": {"type": "ref/resource", "uri": template},
            "argument": {"name": "id", "value": prefix},
        }
        result = run_coroutine(
            organization_server_handlers.handle_completion(inbound(principal, params))
        )
        yield f"completion of {template} {prefix}", json.dumps(result)
    for tool in tools.values():
        for word, ids in example.ids.items():
            takes = tool.input_schema.schema["properties"]
            arguments = {name: value for name, value in ids.items() if name in takes}
            if (
                tool.hints.read_only
                and set(tool.input_schema.schema.get("required", ())) <= arguments.keys()
            ):
                result = run_tool(tool.run(inbound(principal), arguments))
                yield (
                    f"{tool.name} of {word}",
                    "" if isinstance(result, Problem) else json.dumps(result),
                )


def inbound(principal: Principal, params: dict[str, Any] | None = None) -> Any:
    """Build a request of an authenticated principal."""
    fields = params or {}
    return SimpleNamespace(
        caller=SimpleNamespace(principal=principal),
        client_name="ide",
        get_object=lambda name: fields.get(name, {}),
        wants_progress=False,
    )


def run_tool(coroutine: Awaitable[Any]) -> Any:
    """Return the result of a tool, or the problem that it raises."""
    try:
        return run_coroutine(coroutine)
    except Problem as problem:
        return problem


def iterate_rest_texts(case: Case, example: FilledOrganization) -> Iterator[tuple[str, str]]:
    """Yield every REST response for a principal: lists, and objects of its agents."""
    client = case.rest
    for route, method in REST_OPERATIONS if client else ():
        if method == "GET" and ROUTES[route].is_open_to(case.principal, "GET"):
            ids = [example.ids[word] for word in case.reachable] if "<" in route else [{}]
            for id in ids:
                yield route, client.get(fill_path(route, id)).text  # type: ignore[union-attr]


def list_hidden_words(case: Case, example: FilledOrganization) -> set[str]:
    """Return the words that a principal must never see."""
    far = set(example.agents) - case.reachable
    return far if case.principal.may(Action.VIEW) else far | {OTHERS}


@pytest.mark.parametrize("maker", MAKERS)
def test_objects_out_of_reach_arent_revealed_by_other_objects(
    example: FilledOrganization, maker: str
) -> None:
    leaks = []
    for case in example.cases[maker]:
        words = list_hidden_words(case, example)
        if case.is_bound or not case.principal.may(Action.VIEW):
            sources = [*iterate_gateway_texts(case, example), *iterate_rest_texts(case, example)]
            leaks += [
                f"{case.label}: {word} by {source}"
                for source, text in sources
                for word in words
                if word in text
            ]
    assert not leaks, "\n".join(leaks)


Operation = tuple[str, bool, bool]


def is_found(address: GatewayAddress, principal: Principal) -> bool:
    try:
        return bool(find_target(address, principal).id)
    except (NotFound, InsufficientScope):
        return False


def is_served(text: str, slug: str) -> bool:
    try:
        return "tools" in run_coroutine(count_declarations(text, GatewayAddress("agent", slug)))
    except (NotFound, InsufficientScope):
        return False


def check_endpoints(case: Case, example: FilledOrganization, word: str) -> Iterator[Operation]:
    """Yield whether the endpoints of an agent and of a pool server exist for the principal."""
    principal = case.principal
    uses = principal.may(Action.USE_TOOLS) and word in case.reachable
    yield "address", is_found(GatewayAddress("agent", example.agents[word].slug), principal), uses
    if case.text:  # like `bonobot mcp serve --stdio`
        yield "address over stdio", is_served(case.text, example.agents[word].slug), uses
    calls = principal.may(Action.CALL_TOOLS) and not case.is_bound
    yield "address of the pool", is_found(GatewayAddress("server", example.pool), principal), calls


def check_registry(case: Case, example: FilledOrganization, word: str) -> Iterator[Operation]:
    """Yield whether the registry of MCP clients lists an agent and a pool server."""
    organization, uses = example.organization, case.principal.may(Action.USE_TOOLS)
    agent, principal = example.agents[word], case.principal
    pool = Server.objects.get(organization=organization, slug=example.pool)
    with roll_back():
        for server in Server.objects.filter(organization=organization):
            admin_client.declare_tool(server, "echo")
        Definition.objects.filter(organization=organization).update(pinned_digest=F("digest"))
        try:
            entries = [entry.url for entry in server_registry.list_entries(organization, principal)]
        except InsufficientScope:
            entries = []
    yield (
        "entry",
        any(f"/agents/{agent.slug}" in url for url in entries),
        (uses and word in case.reachable),
    )
    calls = principal.may(Action.CALL_TOOLS) and not case.is_bound
    yield "entry of the pool", any(f"/servers/{pool.slug}" in url for url in entries), calls


def check_tools(case: Case, example: FilledOrganization, word: str) -> Iterator[Operation]:
    """Yield which tools of the organization's endpoint work for an agent and its objects."""
    tools, ids = organization_server_handlers.load_tools(case.principal), example.ids[word]
    runs, slug = case.principal.may(Action.RUN_AGENTS), example.agents[word].slug
    reads, is_reachable = runs or case.principal.may(Action.VIEW), word in case.reachable
    others = is_reachable and case.principal.may(Action.VIEW)
    session = {"session_id": ids["session_id"]}
    for name, values, expected in (
        (f"{slug}_chat", {"message": "Hi", "wait_s": 0}, runs and is_reachable),
        (f"{slug}_chat", {"message": "Hi", "wait_s": 0} | session, runs and others),
        ("session_status", session, others),
        ("session_messages", session, others),
        ("session_cancel", session, runs and others),
        ("run_skill", {"skill_id": ids["skill_id"], "agent": slug}, runs and is_reachable),
        ("render_skill", {"skill_id": ids["skill_id"]}, reads and is_reachable),
        ("run_workflow", {"workflow_id": ids["workflow_id"]}, runs and is_reachable),
        ("cancel_workflow_run", {"run_id": ids["run_id"]}, runs and others),
        ("get_workflow_run", {"run_id": ids["run_id"]}, others),
    ):
        with roll_back():
            tool = tools.get(name)
            result = run_tool(tool.run(inbound(case.principal), values)) if tool else NotFound("")
        yield f"{name} {sorted(values)}", not isinstance(result, NotFound | Forbidden), expected
    skill = Skill.objects.get(pk=ids["skill_id"]).name
    yield "prompt", find_skill(case.principal, skill) is not None, reads and is_reachable


def check_rest_operations(
    case: Case, example: FilledOrganization, word: str
) -> Iterator[Operation]:
    """Yield which REST operations work for an agent and its objects."""
    ids, client = example.ids[word], case.rest
    runs, is_reachable = case.principal.may(Action.RUN_AGENTS), word in case.reachable
    reads, others = (
        runs or case.principal.may(Action.VIEW),
        is_reachable and case.principal.may(Action.VIEW),
    )
    agent = example.agents[word].slug
    for path, body, expected in (
        ("agents/{agent_id}/sessions", {"message": "Hi"}, runs and is_reachable),
        ("sessions/{session_id}/messages", {"text": "Hi"}, runs and others),
        ("sessions/{session_id}/cancel", {}, runs and others),
        ("skills/{skill_id}/run", {"agent": agent}, runs and is_reachable),
        ("skills/{skill_id}/render", {}, reads and is_reachable),
        ("workflows/{workflow_id}/runs", {}, runs and is_reachable),
        ("workflow-runs/{run_id}/cancel", {}, runs and others),
    ):
        if client:
            with roll_back():
                response = client.post(path.format_map(ids), body)
            yield path, response.status not in (403, 404), expected


@pytest.mark.parametrize(
    "checks", [check_endpoints, check_registry, check_tools, check_rest_operations]
)
@pytest.mark.parametrize("maker", MAKERS)
def test_every_action_is_allowed_exactly_where_the_table_says(
    example: FilledOrganization,
    maker: str,
    checks: Callable[[Case, FilledOrganization, str], Iterator[Operation]],
) -> None:
    faults = [
        f"{case.label}: {operation} of {word}: {actual}"
        for case in example.cases[maker]
        for word, _agent in select_agents(case, example)
        for operation, actual, expected in checks(case, example, word)
        if actual != expected
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("maker", MAKERS)
def test_every_tool_of_the_organization_refuses_objects_out_of_reach(
    example: FilledOrganization, maker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tool that names an object, also one that is added later, with the ID of each agent.

    The key of pages on which people answer is accepted, so that the answers are compared, too.
    """
    monkeypatch.setattr(management_tools, "check_answer_key", lambda *_: None)
    faults, called = [], set()
    for case in example.cases[maker]:
        tools = organization_server_handlers.load_tools(case.principal)
        far = [word for word in example.agents if word not in case.reachable]
        for tool, word in product(tools.values(), far):
            names = tool.input_schema.schema["properties"]
            ids = {name: value for name, value in example.ids[word].items() if name in names}
            fixed = {"agent": example.agents[word].slug, "slug": example.agents[word].slug}
            ids |= {name: value for name, value in fixed.items() if name in names}
            if not ids or (tool.hints.read_only and not tool.input_schema.schema.get("required")):
                continue  # filters of lists are compared by the words above
            values = dict.fromkeys(tool.input_schema.schema.get("required", ()), "x") | ids
            called.add(tool.name)
            with roll_back():
                result = run_tool(tool.run(inbound(case.principal), values))
            faults += [f"{case.label}: {tool.name} of {word}"] * (not isinstance(result, Problem))
    assert not faults, "\n".join(faults)
    assert called or maker == "people"


def test_a_member_cant_change_objects_of_others(example: FilledOrganization) -> None:
    """Every REST operation on objects of others that belong to the member's agent."""
    personal = {kind.part for kind in KINDS.values() if kind.personal}
    routes = [
        (route, method)
        for route, method in REST_OPERATIONS
        if personal & set(list_path_parameters(route))
    ]
    assert len(routes) > 15
    members = [*example.cases["people"], *example.cases["tokens"]]
    for case in [member for member in members if member.principal.role == Role.MEMBER]:
        for route, method in routes:
            response = case.rest.send(method, fill_path(route, example.ids[NEAR]), {})  # type: ignore[union-attr]
            assert response.status in (403, 404), f"{case.label} {method} {route}: {response!r}"


# -- the admin --------------------------------------------------------------

AGENT_MODELS = tuple(kind.admin for kind in KINDS.values() if kind.admin)


@pytest.mark.parametrize("role", ROLES)
def test_the_admin_shows_the_same_objects_as_rest(example: FilledOrganization, role: Role) -> None:
    case = next(entry for entry in example.cases["people"] if entry.principal.role == role)
    client, faults = Client(), []
    client.force_login(case.user)  # type: ignore[arg-type]
    entries = [entry for entry in iterate_objects(example, case) if entry[1].admin]
    paged = {"ledger_auditrow"}  # the first page has only the latest entries
    with render_without_signals():
        lists = {
            kind.admin: client.get(reverse(f"admin:{kind.admin}_changelist")).content.decode()
            for _name, kind, *_more in entries
        }
        for name, kind, word, ids, own in entries:
            page = reverse(f"admin:{kind.admin}_change", args=[ids[kind.part]])
            expected = case.can_see(kind, word, own=own)
            for surface, actual in (
                ("shown", client.get(page, follow=True).status_code == 200),
                ("listed", ids[kind.part] in lists[kind.admin]),
            )[: 1 if kind.admin in paged else 2]:
                prefix = "own " if own else ""
                faults += [f"{prefix}{name} of {word} {surface}: {actual}"] * (actual != expected)
    assert not faults, "\n".join(faults)


def test_no_page_shows_a_member_agents_without_access(example: FilledOrganization) -> None:
    case = next(entry for entry in example.cases["people"] if entry.principal.role == Role.MEMBER)
    client, words = Client(), list_hidden_words(case, example)
    client.force_login(case.user)  # type: ignore[arg-type]
    ids = {kind.admin: UUID(example.ids[NEAR][kind.part]) for kind in KINDS.values() if kind.admin}
    ids |= dict.fromkeys(("tenancy_user", "mcp_servers_bulkjob", "tenancy_provider"), uuid4())
    leaks = []
    with render_without_signals():
        for name, parameters in ADDRESSES:
            of_agents = any(name.startswith(f"{model}_") for model in AGENT_MODELS)
            if parameters and not of_agents:
                continue
            response = client.get(
                reverse(f"admin:{name}", kwargs=build_arguments(name, parameters, ids))
            )
            text = "" if response.streaming else response.content.decode()
            leaks += [f"{word} by {name}" for word in words if word in text]
    assert not leaks, "\n".join(leaks)
    for word in words:
        entries = command_palette.search_palette(case.principal, Navigation(), word)
        assert [entry.title for entry in entries] == []
