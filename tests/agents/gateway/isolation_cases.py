"""Principals that must not see each other's objects, and requests that name those of others.

`ROWS` has for every method of the gateway the requests in which a stranger could name an object of
another principal, each paired with a request that names a missing object.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from agents.gateway.organization_server.chat_tools import build_chat_tool_name
from agents.models import Agent
from agents.sessions.services import start_session
from agents.skills import SkillSpec, save_skill
from agents.workflows.runs import run_workflow
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import build_token_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from tests import factories
from tests.agents.gateway.conftest import GatewayClient, Reply
from tests.agents.gateway.upstream_server import ABLE, Json, Upstream, attach_upstream

ROOT = "/mcp"
NOWHERE = "nowhere"


@dataclass(frozen=True)
class Party:
    """A principal and its objects; all of them have `mark` in their names."""

    mark: str
    gateway_client: GatewayClient
    agent: Agent
    token: str
    ids: dict[str, str] = field(default_factory=dict)
    task: str = ""
    # By method, the request state of a call that waits for input.
    states: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> str:
        """The endpoint of its agent."""
        return f"{ROOT}/agents/{self.agent.slug}"

    def tool(self, name: str) -> str:
        """Return the name of a tool of its server at its agent."""
        return f"mcp_{self.mark}_{name}"

    def ask(self, path: str, method: str, params: Json, **headers: str) -> Reply:
        """Send a request of the modern era with all capabilities."""
        sent: Any = headers
        return self.gateway_client.modern(
            path, method, params, capabilities=ABLE, token=self.token, **sent
        )


def create_party(
    organization: Organization, gateway_client: GatewayClient, upstream: Upstream, role: Role
) -> Party:
    """Create an agent with a server, a skill, a workflow and a session, and a token for it."""
    administrator, mark = factories.build_administrator(organization), upstream.mark
    agent = factories.create_agent(organization, mark)
    server = attach_upstream(upstream, organization, agent)
    token, text = create_token(administrator, name=mark, role=role, agent_ids=[str(agent.pk)])
    principal = build_token_principal(token)
    skill = save_skill(
        administrator, SkillSpec(name=f"{mark}-skill", text="Hello", agents=[agent.slug])
    )
    workflow = factories.create_workflow(agent, f"{mark}-flow")
    session = start_session(principal, agent, "Hello")
    run = run_workflow(principal, workflow, {})
    ids = {
        "agent_id": str(agent.pk),
        "server_id": str(server.pk),
        "skill_id": str(skill.pk),
        "workflow_id": str(workflow.pk),
        "run_id": str(run.pk),
        "session_id": str(session.pk),
    }
    return start_requests(Party(mark, gateway_client, agent, text, ids))


def create_twin(party: Party) -> Party:
    """Create another principal with the same permissions."""
    administrator = factories.build_administrator(party.agent.organization)
    _, text = create_token(
        administrator, name="twin", role=Role.MEMBER, agent_ids=[str(party.agent.pk)]
    )
    return start_requests(replace(party, token=text))


def start_requests(party: Party) -> Party:
    """Return the party with a task and a call that waits for input."""
    work_call = {"name": party.tool("work"), "arguments": {}}
    task = party.ask(party.home, "tools/call", work_call).result
    ask_call = {"name": party.tool("ask"), "arguments": {}}
    waiting = party.ask(party.home, "tools/call", ask_call).result
    return replace(party, task=task["taskId"], states={"tools/call": waiting["requestState"]})


@dataclass(frozen=True)
class Probe:
    """A request that names an object of another principal, and one that names a missing object.

    The owner sends the first at `home` to show that it is valid; empty if it would change
    something.
    """

    path: str
    foreign: Json
    unknown: Json
    names: tuple[str, ...] = ()
    home: str = ""
    headers: tuple[Json, Json] = ({}, {})


Row = Callable[[Party, Party], Iterator[Probe]]
"""Yields the requests of a stranger for the objects of an owner."""


def _build_probe(
    field: str, foreign: str, unknown: str, path: str, home: str, **more: Any
) -> Probe:
    return Probe(path, {field: foreign, **more}, {field: unknown, **more}, (foreign, unknown), home)


def lists(stranger: Party, owner: Party) -> Iterator[Probe]:
    """Lists, which name no object."""
    for path in (stranger.home, ROOT):
        yield Probe(path, {}, {}, home=owner.home)


def tools(stranger: Party, owner: Party) -> Iterator[Probe]:
    """Tools of the owner, and tools of the organization with ids of the owner's objects."""
    call = {"arguments": {}}
    yield _build_probe(
        "name", owner.tool("echo"), owner.tool("none"), stranger.home, owner.home, **call
    )
    chat_call = {"arguments": {"message": "Hi", "wait_s": 0}}
    chat = build_chat_tool_name(owner.agent)
    yield replace(_build_probe("name", chat, f"{NOWHERE}_chat", ROOT, ROOT, **chat_call), home="")
    for tool in stranger.ask(ROOT, "tools/list", {}).result["tools"]:
        yield from _iterate_tools_with_ids(tool, owner)
    yield from states("tools/call", stranger, owner)


def _iterate_tools_with_ids(tool: Json, owner: Party) -> Iterator[Probe]:
    schema = tool["inputSchema"]
    for name in schema["properties"]:
        if not name.endswith("_id"):
            continue
        foreign = owner.ids.get(name) or str(uuid4())
        required = {
            field: owner.ids.get(field, str(uuid4())) if field.endswith("_id") else "x"
            for field in schema.get("required", ())
        }
        arguments = {**required, name: foreign}, {**required, name: str(uuid4())}
        calls = [{"name": tool["name"], "arguments": values} for values in arguments]
        yield Probe(ROOT, calls[0], calls[1], (arguments[0][name], arguments[1][name]))


def states(method: str, stranger: Party, owner: Party) -> Iterator[Probe]:
    """The owner's request state, with the request it belongs to if possible."""
    same_agent = stranger.agent == owner.agent
    tool_owner = owner if same_agent else stranger
    request = {"name": tool_owner.tool("ask"), "arguments": {}, "inputResponses": {}}
    state = owner.states[method]
    yield replace(
        _build_probe("requestState", state, f"{state[:-8]}AAAAAAA=", stranger.home, "", **request),
        names=(),
    )


def resources(stranger: Party, owner: Party) -> Iterator[Probe]:
    """Resources of the owner at the agent's and the organization's endpoint."""
    uri = f"{owner.mark}+mem://{owner.mark}"
    yield _build_probe("uri", uri, f"{NOWHERE}+mem://x", stranger.home, owner.home)
    yield from skills(stranger, owner)
    for kind in ("agent", "session", "workflow"):
        known, unknown = (f"bonobot://{kind}s/{pk}" for pk in (owner.ids[f"{kind}_id"], uuid4()))
        yield _build_probe("uri", known, unknown, ROOT, ROOT)
    yield _build_probe(
        "uri", f"bonobot://agents/{owner.agent.slug}", "bonobot://agents/no", ROOT, ROOT
    )


def skills(stranger: Party, owner: Party) -> Iterator[Probe]:
    """The owner's skill at its agent's and the organization's endpoint."""
    known, unknown = (f"skill://{name}-skill/SKILL.md" for name in (owner.mark, NOWHERE))
    yield _build_probe("uri", known, unknown, ROOT, ROOT)
    if stranger.agent != owner.agent:
        yield _build_probe("uri", known, unknown, stranger.home, owner.home)


def prompts(stranger: Party, owner: Party) -> Iterator[Probe]:
    """The owner's prompt and skill."""
    prompt = f"{owner.mark}.{owner.mark}-greet"
    yield _build_probe("name", prompt, f"{NOWHERE}.greet", stranger.home, owner.home)
    yield _build_probe("name", f"{owner.mark}-skill", f"{NOWHERE}-skill", ROOT, ROOT)


def completions(stranger: Party, owner: Party) -> Iterator[Probe]:
    """Completions of the owner's prompts, templates and names."""
    for path, home, kind, key, foreign in (
        (stranger.home, owner.home, "ref/prompt", "name", f"{owner.mark}.{owner.mark}-greet"),
        (stranger.home, owner.home, "ref/resource", "uri", f"{owner.mark}+{owner.mark}://{{id}}"),
        (ROOT, ROOT, "ref/prompt", "name", f"{owner.mark}-skill"),
    ):
        refs = [{"ref": {"type": kind, key: name}} for name in (foreign, NOWHERE)]
        argument = {"name": "id" if key == "uri" else "name", "value": ""}
        params = [{**ref, "argument": argument} for ref in refs]
        yield Probe(path, params[0], params[1], (foreign, NOWHERE), home)
    for kind, prefix in (("agents", owner.mark), ("sessions", owner.ids["session_id"][:18])):
        ref = {"type": "ref/resource", "uri": f"bonobot://{kind}/{{id}}"}
        params = [
            {"ref": ref, "argument": {"name": "id", "value": value}} for value in (prefix, NOWHERE)
        ]
        yield Probe(ROOT, params[0], params[1], (prefix, NOWHERE), ROOT)


def tasks(stranger: Party, owner: Party) -> Iterator[Probe]:
    """The owner's task, at the stranger's and the organization's endpoint."""
    unknown = f"{owner.task[:-8]}AAAAAAA="
    for path in (stranger.home, ROOT):
        home = owner.home if path == stranger.home else ""
        probe = _build_probe("taskId", owner.task, unknown, path, home, inputResponses={})
        yield replace(probe, headers=({"Mcp_Name": owner.task}, {"Mcp_Name": unknown}))


def sessions(stranger: Party, owner: Party) -> Iterator[Probe]:
    """No requests: sessions are tested for every method separately."""
    yield from ()


def subscriptions(stranger: Party, owner: Party) -> Iterator[Probe]:
    """Subscriptions to the owner's resource."""
    known, unknown = (f"bonobot://sessions/{pk}" for pk in (owner.ids["session_id"], uuid4()))
    yield _build_probe("uri", known, unknown, ROOT, ROOT)


ROWS: dict[str, Row] = {
    **dict.fromkeys(("tools/list", "resources/list", "prompts/list", "skills/list"), lists),
    **dict.fromkeys(("resources/templates/list", "server/discover"), lists),
    "skills/get": skills,
    **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), tasks),
    **dict.fromkeys(("initialize", "logging/setLevel"), sessions),
    **dict.fromkeys(("resources/subscribe", "resources/unsubscribe"), subscriptions),
    "tools/call": tools,
    "resources/read": resources,
    "prompts/get": prompts,
    "completion/complete": completions,
    # Notifications on streams are tested separately.
    "subscriptions/listen": sessions,
}
# Objects that belong to the principal who started them, whatever others may do.
PERSONAL: dict[str, Row] = {
    **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), tasks),
    "tools/call": lambda stranger, owner: states("tools/call", stranger, owner),
}
