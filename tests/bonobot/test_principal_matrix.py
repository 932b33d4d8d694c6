"""What a principal may see and do: principal × interface × object × verb, the same everywhere.

`KINDS` declares which action each object asks for, `Case` which agents a principal has; what is
expected is worked out from both, once, and compared with what REST, the gateway and the admin do.
Everything about an agent out of reach holds the word `zebra`, and everything about other people's
sessions the word `otter`: wherever one turns up that shouldn't, something leaks.
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
from django.test import Client
from django.urls import reverse

from agents.console import command_palette
from agents.gateway.organization_server import handlers as organization_server_handlers
from agents.gateway.organization_server import resources as organization_server_resources
from agents.gateway.organization_server.handlers import find_skill
from agents.gateway.routes import GatewayAddress, find_target
from agents.gateway.transports import count_declarations
from agents.models import (
    Agent,
    Approval,
    ElicitationRequest,
    Note,
    Recording,
    Session,
    Skill,
    Workflow,
    WorkflowRun,
)
from agents.skills.services import SkillSpec, save_skill
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
from bonobot.accounts.tokens import services as token_services
from bonobot.accounts.tokens.services import create_token
from bonobot.core.problems import Forbidden, NotFound, Problem
from bonobot.core.runtime import Runtime
from mcp_servers.models import Server
from tests import factories, rest
from tests.bonobot.test_api_matrix import OPERATIONS as OF_REST
from tests.bonobot.test_api_matrix import ROUTES, filled, parts
from tests.inventory import everything
from tests.screens import ADDRESSES, arguments, only_answers, shared_rows

NEAR, FAR, OTHERS = "alpaca", "zebra", "otter"
READS = (Action.VIEW, Action.RUN_AGENTS)
READERS = (Role.OWNER, Role.OPERATOR, Role.REVIEWER, Role.AUDITOR)
OF_MCP = (TokenScope.TOOLS, TokenScope.AGENTS, TokenScope.MANAGE)


@dataclass(frozen=True)
class Kind:
    """A kind of object: how it is named, and which actions open it.

    `closed`: only who isn't bound to agents reads it. `personal`: without `VIEW` one's own alone.
    """

    part: str
    path: str
    listing: str
    opens: tuple[Action, ...] = READS
    closed: bool = False
    personal: bool = False
    resource: str = ""
    admin: str = ""


KINDS = {
    "agent": Kind("agent_id", "agents/{}", "agents", resource="agents", admin="agents_agent"),
    "session": Kind(
        "session_id",
        "sessions/{}",
        "sessions",
        personal=True,
        resource="sessions",
        admin="agents_session",
    ),
    "approval": Kind(
        "approval_id", "approvals/{}", "approvals", personal=True, admin="agents_approval"
    ),
    "question": Kind(
        "request_id",
        "elicitation-requests/{}",
        "elicitation-requests",
        personal=True,
        admin="agents_elicitationrequest",
    ),
    "skill": Kind("skill_id", "skills/{}", "skills", admin="agents_skill"),
    "workflow": Kind(
        "workflow_id", "workflows/{}", "workflows", resource="workflows", admin="agents_workflow"
    ),
    "run": Kind("run_id", "workflow-runs/{}", "workflows/{workflow_id}/runs", personal=True),
    "recording": Kind("recording_id", "recordings/{}", "recordings", (Action.VIEW,)),
    "budgets": Kind("agent_id", "agents/{}/budgets", "", (Action.VIEW,)),
    "note": Kind(
        "note_id", "agents/{agent_id}/notes/{}", "agents/{agent_id}/notes", (Action.VIEW,), True
    ),
    "trigger": Kind(
        "trigger_id",
        "workflows/{workflow_id}/triggers/{}",
        "workflows/{workflow_id}/triggers",
        (Action.VIEW,),
        True,
    ),
    "server": Kind("server_id", "mcp-servers/{}", "", (Action.VIEW,), True),
    "definition": Kind(
        "definition_id", "mcp-servers/{server_id}/definitions/{}", "", (Action.VIEW,), True
    ),
    "endpoint": Kind(
        "endpoint_id",
        "model-endpoints/{}",
        "model-endpoints",
        (Action.VIEW,),
        True,
        admin="agents_modelendpoint",
    ),
    "token": Kind(
        "token_id", "tokens/{}", "tokens", (Action.MANAGE_TOKENS,), True, admin="tenancy_token"
    ),
    "issuer": Kind(
        "issuer_id", "external-issuers/{}", "external-issuers", (Action.MANAGE_ISSUERS,), True
    ),
    "member": Kind("member_id", "members/{}", "members", (Action.VIEW,), True),
    "audit": Kind(
        "audit_id",
        "audit/{}",
        "audit?limit=500",
        (Action.VIEW_AUDIT,),
        True,
        admin="ledger_auditrow",
    ),
    "usage": Kind("", "usage", "", (Action.VIEW_AUDIT,), True),
}


@dataclass
class Case:
    """A principal and how it comes in; `has` are the agents it reaches, `own` its own objects."""

    label: str
    principal: Principal
    has: frozenset[str]
    text: str = ""
    user: User | None = None

    @property
    def bound(self) -> bool:
        """Whether it is bound to some agents of those that its role would have."""
        return bool(self.principal.agent_ids)

    def opens(self, kind: Kind) -> bool:
        """Tell whether the table opens objects of this kind at all."""
        if self.bound and kind.closed:
            return False
        return any(self.principal.may(action) for action in kind.opens)

    def sees(self, kind: Kind, word: str, *, own: bool) -> bool:
        """Tell what is expected: whether an object of the agent of `word` can be seen."""
        if not self.opens(kind):
            return False
        if kind.closed:
            return True
        if own and self.user is not None and not self.principal.may(Action.VIEW):
            return True  # what people said themselves they can read for ever
        if kind.personal and not self.principal.may(Action.VIEW):
            return own and word in self.has
        return word in self.has

    @property
    def rest(self) -> rest.Rest | None:
        """Return its way to REST, where it has one."""
        return rest.Rest(self.text, self.user) if self.text or self.user else None


@dataclass
class World:
    """An organization with two agents and one of everything of each, by the words."""

    where: Organization
    agents: dict[str, Agent]
    ids: dict[str, dict[str, str]]
    pool: str
    cases: dict[str, list[Case]]


def stock(where: Organization, word: str) -> dict[str, str]:
    """Make one of everything of one agent, and write the word into it all."""
    ids = everything(where, f"-{word}")
    said = f"About {word} of {OTHERS}."
    Agent.objects.filter(pk=ids["agent_id"]).update(name=word, description=f"The {word}.")
    Server.objects.filter(pk=ids["server_id"]).update(name=word)
    Note.objects.filter(pk=ids["note_id"]).update(title=word, text=f"On {word}.")
    Session.objects.filter(agent_id=ids["agent_id"]).update(title=said)
    Approval.objects.filter(pk=ids["approval_id"]).update(reason=said, arguments={"a": said})
    ElicitationRequest.objects.filter(pk=ids["request_id"]).update(message=said)
    Recording.objects.filter(pk=ids["recording_id"]).update(title=said)
    Provider.objects.filter(pk=ids["provider_id"]).update(name=f"Login {ids['provider_id']}")
    return ids


def own_things(case: Case, agent: Agent, word: str) -> dict[str, str]:
    """Make a session of the principal's own, with what waits in it and a run that it follows."""
    who = {"started_by_kind": case.principal.kind, "started_by_id": case.principal.id}
    asks = {
        "requested_by_kind": case.principal.kind,
        "requested_by_id": case.principal.id,
        "requested_by": case.principal.label,
    }
    title = f"Own of {word}"
    mine = Session.objects.create(organization=agent.organization, agent=agent, title=title, **who)
    approval = factories.create_approval(agent, mine, reason=f"Own {word}", **asks)
    server = agent.agent_servers.get().server
    question = factories.create_elicitation(mine, server)
    ElicitationRequest.objects.filter(pk=question.pk).update(message=f"Own {word}", **asks)
    workflow = agent.workflows.order_by("name")[0]
    run = WorkflowRun.objects.create(
        organization=agent.organization,
        workflow=workflow,
        name=workflow.name,
        session=mine,
        version=workflow.version,
        definition=workflow.definition,
    )
    return {
        "session_id": str(mine.pk),
        "approval_id": str(approval.pk),
        "request_id": str(question.pk),
        "run_id": str(run.pk),
        "workflow_id": str(workflow.pk),
    }


def people(where: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield a person of each role, to whom one agent was given."""
    for role in Role:
        user = User.objects.get(pk=factories.create_member(where, role, f"person-{role}").id)
        agents[NEAR].members.add(user)
        has = frozenset(agents) if role in READERS else frozenset({NEAR})
        yield Case(f"person {role}", build_user_principal(user, where), has, user=user)


def tokens(where: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield a token of each role that names an agent, and of two roles one that names none."""
    administrator = factories.build_administrator(where)
    for role, names in [*((role, (NEAR,)) for role in Role), (Role.MEMBER, ()), (Role.AUDITOR, ())]:
        ids = [agents[name].pk for name in names]
        token, text = create_token(administrator, name=f"{role} {names}", role=role, agent_ids=ids)
        has = frozenset(names) or frozenset(agents if role in READERS else ())
        yield Case(f"token {role} {names}", build_token_principal(token), has, text)


def programs(where: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield programs: those of members name an agent that isn't theirs (any more), too."""
    choices = [
        *product((Role.MEMBER, Role.OPERATOR), [OF_MCP], ((), (NEAR,), (NEAR, FAR))),
        *product([Role.MEMBER], [(scope,) for scope in OF_MCP], [(NEAR, FAR)]),
    ]
    for number, (role, scopes, names) in enumerate(choices):
        giver = User.objects.create_user(f"giver-{number}")
        Membership.objects.create(organization=where, user=giver, role=role)
        agents[NEAR].members.add(giver)
        grant = token_services.create_grant(
            giver,
            where,
            role=role,
            resource="https://bonobot.example.com/mcp",
            client_id="ide",
            client="IDE",
            scopes=scopes,
            agent_ids=[agents[name].pk for name in names],
        )
        has = frozenset(agents) if role == Role.OPERATOR else frozenset({NEAR})
        has &= frozenset(names) if names or role == Role.MEMBER else has
        yield Case(f"program {role} {scopes} {names}", build_token_principal(grant), has)


def strangers(where: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield tokens of issuers elsewhere."""
    choices = [
        *product((Role.MEMBER, Role.AUDITOR), [TokenScope.AGENTS], ((), (NEAR,))),
        *product((Role.MEMBER, Role.AUDITOR), (TokenScope.TOOLS, TokenScope.MANAGE, ""), [(NEAR,)]),
    ]
    for number, (role, scope, names) in enumerate(choices):
        ids = [str(agents[name].pk) for name in names]
        fields = {"role": role, "agent_ids": ids, "audience": "bonobot"}
        url = f"https://issuer{number}.example.com"
        row = factories.create_issuer(where, url, f"Issuer {number}", **fields)
        principal = jwt_validation.build_issuer_principal(
            row, {"sub": str(uuid4()), "scope": scope}
        )
        has = frozenset(names) or frozenset(agents if role in READERS else ())
        yield Case(f"issuer {role} {scope} {names}", principal, has)


MAKERS = {"people": people, "tokens": tokens, "programs": programs, "strangers": strangers}


@pytest.fixture(scope="module")
def stocked_world(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[World]:
    """Stock an organization for all tests of this module."""
    with shared_rows(django_db_blocker):
        where = factories.create_organization()
        ids = {word: stock(where, word) for word in (NEAR, FAR)}
        agents = {word: Agent.objects.get(pk=ids[word]["agent_id"]) for word in ids}
        administrator = factories.build_administrator(where)
        both = [agent.slug for agent in agents.values()]
        save_skill(administrator, SkillSpec(name="shared", text="Hello", agents=both))
        flow = Workflow.objects.get(pk=ids[NEAR]["workflow_id"])
        save_workflow(administrator, WorkflowSpec(name=flow.name, agents=both), flow)
        cases = {name: list(make(where, agents)) for name, make in MAKERS.items()}
        pool = Server.objects.create(
            organization=where, scope_id=where.pk, name="pool", slug="pool", transport_type="http"
        )
        yield World(where, agents, ids, pool.slug, cases)


@pytest.fixture
def world(stocked_world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Return the organization; what a test changes is rolled back. The gateway works in line."""

    async def orm(_self: Runtime, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    monkeypatch.setattr(Runtime, "run_orm", orm)
    with transaction.atomic():
        yield stocked_world
        transaction.set_rollback(True)


@contextmanager
def undone() -> Iterator[None]:
    """Roll back what is done here."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def answered(coroutine: Awaitable[Any]) -> Any:
    """Return what a coroutine returns that waits for nothing."""
    try:
        next(coroutine.__await__())
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits for something")


def of_interest(case: Case, world: World) -> list[tuple[str, Agent]]:
    """Return the agents by their words: one is enough for a principal that has all."""
    everything_seen = case.has == world.agents.keys()
    return [one for one in world.agents.items() if one[0] == FAR or not everything_seen]


def objects(world: World, case: Case) -> Iterator[tuple[str, Kind, str, dict[str, str], bool]]:
    """Yield every object: its kind, the agent's word, its ids, and whether it is one's own."""
    for word, agent in of_interest(case, world):
        own = own_things(case, agent, word)
        for name, kind in KINDS.items():
            yield name, kind, word, world.ids[word], False
            if kind.personal:
                yield name, kind, word, world.ids[word] | own, True


def shown_by_rest(
    client: rest.Rest, kind: Kind, ids: dict[str, str], lists: dict[str, set[str]]
) -> tuple[bool, bool]:
    """Tell whether REST shows an object, and whether it lists it; `lists` were read before."""
    path = kind.path.replace("{}", ids.get(kind.part, "")).format_map(ids)
    shown = client.get(path)
    assert shown.status in (200, 403, 404), shown
    if not kind.listing:
        return shown.status == 200, shown.status == 200
    listing = kind.listing.format_map(ids)
    if listing not in lists:
        listed = client.get(listing)
        assert listed.status in (200, 403, 404), listed
        rows = listed.json["results"] if listed.status == 200 else ()
        lists[listing] = {row["id"] for row in rows}
    return shown.status == 200, ids[kind.part] in lists[listing]


def resource_is_read(principal: Principal, uri: str) -> bool:
    try:
        return organization_server_resources.read_resource_contents(principal, uri) is not None
    except (NotFound, Forbidden):
        return False


def shown_by_gateway(case: Case, kind: Kind, ids: dict[str, str]) -> dict[str, bool]:
    """Tell which ways of the organization's address show an object."""
    number, principal = ids.get(kind.part, ""), case.principal
    uri = organization_server_resources.build_uri(kind.resource, number)
    return {
        "reads": resource_is_read(principal, uri),
        "follows": uri in organization_server_resources.load_resource_states(principal, [uri]),
    }


@pytest.mark.parametrize("who", MAKERS)
def test_every_object_is_visible_exactly_where_the_table_says(world: World, who: str) -> None:
    wrong = []
    for case in world.cases[who]:
        client, lists = case.rest, dict[str, set[str]]()
        for name, kind, word, ids, own in list(objects(world, case)):
            expected = case.sees(kind, word, own=own)
            told: dict[str, bool] = {}
            if client:
                told["shown by REST"], told["listed by REST"] = shown_by_rest(
                    client, kind, ids, lists
                )
            if kind.resource:
                told |= shown_by_gateway(case, kind, ids)
            whose = "own " if own else ""
            if name == "run" and own and word not in case.has:
                told.pop("listed by REST", None)  # below a workflow that isn't there any more
            wrong += [
                f"{case.label}: {whose}{name} of {word} {how}: {is_}"
                for how, is_ in told.items()
                if is_ != expected
            ]
    assert not wrong, "\n".join(wrong)


def gateway_texts(case: Case, world: World) -> Iterator[tuple[str, str]]:
    """Yield all that the organization's address tells a principal, by the way of asking."""
    principal = case.principal
    for kind, lists in organization_server_handlers.LIST_FUNCTIONS.items():
        yield f"list of {kind}", json.dumps(lists(principal))
    tools = organization_server_handlers.load_tools(principal)
    for template, begun in product(
        organization_server_handlers.KINDS_BY_TEMPLATE, ("", FAR[0], "helper", "tell")
    ):
        asked = {
            "ref": {"type": "ref/resource", "uri": template},
            "argument": {"name": "id", "value": begun},
        }
        told = answered(organization_server_handlers.handle_completion(inbound(principal, asked)))
        yield f"completion of {template} {begun}", json.dumps(told)
    for tool in tools.values():
        for word, ids in world.ids.items():
            takes = tool.input_schema.schema["properties"]
            given = {name: value for name, value in ids.items() if name in takes}
            if (
                tool.hints.read_only
                and set(tool.input_schema.schema.get("required", ())) <= given.keys()
            ):
                told = outcome(tool.run(inbound(principal), given))
                yield (
                    f"{tool.name} of {word}",
                    "" if isinstance(told, Problem) else json.dumps(told),
                )


def inbound(principal: Principal, params: dict[str, Any] | None = None) -> Any:
    """Return a request of a principal that is known already."""
    said = params or {}
    return SimpleNamespace(
        caller=SimpleNamespace(principal=principal),
        client_name="ide",
        get_object=lambda name: said.get(name, {}),
        wants_progress=False,
    )


def outcome(coroutine: Awaitable[Any]) -> Any:
    """Return what a tool answers, or the problem that it raises."""
    try:
        return answered(coroutine)
    except Problem as problem:
        return problem


def rest_texts(case: Case, world: World) -> Iterator[tuple[str, str]]:
    """Yield all that REST tells a principal: lists, and what is about the agent that it has."""
    client = case.rest
    for route, method in OF_REST if client else ():
        if method == "GET" and ROUTES[route].is_open_to(case.principal, "GET"):
            ids = [world.ids[word] for word in case.has] if "<" in route else [{}]
            for id in ids:
                yield route, client.get(filled(route, id)).text  # type: ignore[union-attr]


def hidden(case: Case, world: World) -> set[str]:
    """Return the words that a principal must never be told."""
    far = set(world.agents) - case.has
    return far if case.principal.may(Action.VIEW) else far | {OTHERS}


@pytest.mark.parametrize("who", MAKERS)
def test_objects_out_of_reach_arent_revealed_by_other_objects(world: World, who: str) -> None:
    leaks = []
    for case in world.cases[who]:
        words = hidden(case, world)
        if case.bound or not case.principal.may(Action.VIEW):
            ways = [*gateway_texts(case, world), *rest_texts(case, world)]
            leaks += [
                f"{case.label}: {word} by {way}"
                for way, text in ways
                for word in words
                if word in text
            ]
    assert not leaks, "\n".join(leaks)


Operation = tuple[str, bool, bool]


def is_there(address: GatewayAddress, principal: Principal) -> bool:
    try:
        return bool(find_target(address, principal).id)
    except (NotFound, InsufficientScope):
        return False


def is_served(text: str, slug: str) -> bool:
    try:
        return "tools" in answered(count_declarations(text, GatewayAddress("agent", slug)))
    except (NotFound, InsufficientScope):
        return False


def addresses_open(case: Case, world: World, word: str) -> Iterator[Operation]:
    """Yield whether the gateway's addresses are there: an agent's, and a pool server's."""
    principal = case.principal
    uses = principal.may(Action.USE_TOOLS) and word in case.has
    yield "address", is_there(GatewayAddress("agent", world.agents[word].slug), principal), uses
    if case.text:  # as `bonobot mcp serve --stdio` comes in
        yield "address over stdio", is_served(case.text, world.agents[word].slug), uses
    calls = principal.may(Action.CALL_TOOLS) and not case.bound
    yield "address of the pool", is_there(GatewayAddress("server", world.pool), principal), calls


def tools_work(case: Case, world: World, word: str) -> Iterator[Operation]:
    """Yield which tools of the organization's address do something with an agent and its things."""
    tools, ids = organization_server_handlers.load_tools(case.principal), world.ids[word]
    runs, slug = case.principal.may(Action.RUN_AGENTS), world.agents[word].slug
    reads, has = runs or case.principal.may(Action.VIEW), word in case.has
    others = has and case.principal.may(Action.VIEW)
    session = {"session_id": ids["session_id"]}
    for name, given, expected in (
        (f"{slug}_chat", {"message": "Hi", "wait_s": 0}, runs and has),
        (f"{slug}_chat", {"message": "Hi", "wait_s": 0} | session, runs and others),
        ("session_status", session, others),
        ("session_messages", session, others),
        ("session_cancel", session, runs and others),
        ("run_skill", {"skill_id": ids["skill_id"], "agent": slug}, runs and has),
        ("render_skill", {"skill_id": ids["skill_id"]}, reads and has),
        ("run_workflow", {"workflow_id": ids["workflow_id"]}, runs and has),
        ("cancel_workflow_run", {"run_id": ids["run_id"]}, runs and others),
        ("get_workflow_run", {"run_id": ids["run_id"]}, others),
    ):
        with undone():
            tool = tools.get(name)
            told = outcome(tool.run(inbound(case.principal), given)) if tool else NotFound("")
        yield f"{name} {sorted(given)}", not isinstance(told, NotFound | Forbidden), expected
    skill = Skill.objects.get(pk=ids["skill_id"]).name
    yield "prompt", find_skill(case.principal, skill) is not None, reads and has


def rest_works(case: Case, world: World, word: str) -> Iterator[Operation]:
    """Yield which operations of REST do something with an agent and its things."""
    ids, client = world.ids[word], case.rest
    runs, has = case.principal.may(Action.RUN_AGENTS), word in case.has
    reads, others = runs or case.principal.may(Action.VIEW), has and case.principal.may(Action.VIEW)
    agent = world.agents[word].slug
    for path, body, expected in (
        ("agents/{agent_id}/sessions", {"message": "Hi"}, runs and has),
        ("sessions/{session_id}/messages", {"text": "Hi"}, runs and others),
        ("sessions/{session_id}/cancel", {}, runs and others),
        ("skills/{skill_id}/run", {"agent": agent}, runs and has),
        ("skills/{skill_id}/render", {}, reads and has),
        ("workflows/{workflow_id}/runs", {}, runs and has),
        ("workflow-runs/{run_id}/cancel", {}, runs and others),
    ):
        if client:
            with undone():
                told = client.post(path.format_map(ids), body)
            yield path, told.status not in (403, 404), expected


@pytest.mark.parametrize("ways", [addresses_open, tools_work, rest_works])
@pytest.mark.parametrize("who", MAKERS)
def test_every_action_is_allowed_exactly_where_the_table_says(
    world: World, who: str, ways: Callable[[Case, World, str], Iterator[Operation]]
) -> None:
    wrong = [
        f"{case.label}: {way} of {word}: {is_}"
        for case in world.cases[who]
        for word, _agent in of_interest(case, world)
        for way, is_, expected in ways(case, world, word)
        if is_ != expected
    ]
    assert not wrong, "\n".join(wrong)


def test_a_member_cant_change_objects_of_others(world: World) -> None:
    """Every operation of REST, on things of the member's own agent that other people began."""
    personal = {kind.part for kind in KINDS.values() if kind.personal}
    routes = [(route, method) for route, method in OF_REST if personal & set(parts(route))]
    assert len(routes) > 15
    members = [*world.cases["people"], *world.cases["tokens"]]
    for case in [member for member in members if member.principal.role == Role.MEMBER]:
        for route, method in routes:
            told = case.rest.send(method, filled(route, world.ids[NEAR]), {})  # type: ignore[union-attr]
            assert told.status in (403, 404), f"{case.label} {method} {route}: {told!r}"


# -- the admin, which people use --------------------------------------------------------------

OF_AGENTS = tuple(kind.admin for kind in KINDS.values() if kind.admin)


@pytest.mark.parametrize("role", Role)
def test_the_admin_shows_the_same_objects_as_rest(world: World, role: Role) -> None:
    case = next(one for one in world.cases["people"] if one.principal.role == role)
    client, wrong = Client(), []
    client.force_login(case.user)  # type: ignore[arg-type]
    things = [one for one in objects(world, case) if one[1].admin]
    paged = {"ledger_auditrow"}  # of which the first page has the latest alone
    with only_answers():
        lists = {
            kind.admin: client.get(reverse(f"admin:{kind.admin}_changelist")).content.decode()
            for _name, kind, *_more in things
        }
        for name, kind, word, ids, own in things:
            page = reverse(f"admin:{kind.admin}_change", args=[ids[kind.part]])
            expected = case.sees(kind, word, own=own)
            for how, is_ in (
                ("shown", client.get(page, follow=True).status_code == 200),
                ("listed", ids[kind.part] in lists[kind.admin]),
            )[: 1 if kind.admin in paged else 2]:
                whose = "own " if own else ""
                wrong += [f"{whose}{name} of {word} {how}: {is_}"] * (is_ != expected)
    assert not wrong, "\n".join(wrong)


def test_no_page_shows_a_member_agents_without_access(world: World) -> None:
    case = next(one for one in world.cases["people"] if one.principal.role == Role.MEMBER)
    client, words = Client(), hidden(case, world)
    client.force_login(case.user)  # type: ignore[arg-type]
    ids = {kind.admin: UUID(world.ids[NEAR][kind.part]) for kind in KINDS.values() if kind.admin}
    ids |= dict.fromkeys(("tenancy_user", "mcp_servers_bulkjob", "tenancy_provider"), uuid4())
    leaks = []
    with only_answers():
        for name, parameters in ADDRESSES:
            of_agents = any(name.startswith(f"{model}_") for model in OF_AGENTS)
            if parameters and not of_agents:
                continue
            response = client.get(reverse(f"admin:{name}", kwargs=arguments(name, parameters, ids)))
            text = "" if response.streaming else response.content.decode()
            leaks += [f"{word} by {name}" for word in words if word in text]
    assert not leaks, "\n".join(leaks)
    for word in words:
        assert [one.title for one in command_palette.search_palette(case.principal, (), word)] == []
