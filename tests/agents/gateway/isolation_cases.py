"""Parties: principals that must not see each other, what each has, and how each method names it.

`ROWS` says for every method that the gateway serves what of somebody else's a stranger could name
in it, beside a name that nothing has.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from agents.gateway.organization_server.chat_tools import build_chat_tool_name
from agents.models import Agent
from agents.sessions.services import start_session
from agents.skills.services import SkillSpec, save_skill
from agents.workflows.services import run_workflow
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import build_token_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from tests import factories
from tests.agents.gateway.conftest import Reply, Wire
from tests.agents.gateway.upstream_server import ABLE, Json, Upstream, give

ROOT = "/mcp"
NOWHERE = "nowhere"


@dataclass(frozen=True)
class Party:
    """A principal, and what is its own; all of it has `mark` in its name."""

    mark: str
    wire: Wire
    agent: Agent
    token: str
    ids: dict[str, str] = field(default_factory=dict)
    task: str = ""
    # By method, what brings back a request that was asked something.
    states: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> str:
        """Where its agent is."""
        return f"{ROOT}/agents/{self.agent.slug}"

    def tool(self, name: str) -> str:
        """Return a tool of its server as its agent has it."""
        return f"mcp_{self.mark}_{name}"

    def ask(self, path: str, method: str, params: Json, **headers: str) -> Reply:
        """Ask in the modern era, as somebody who is able."""
        more: Any = headers
        return self.wire.modern(path, method, params, capabilities=ABLE, token=self.token, **more)


def party(where: Organization, wire: Wire, upstream: Upstream, role: Role) -> Party:
    """Make an agent with a server, a skill, a workflow and a session, and a token for it all."""
    boss, mark = factories.build_administrator(where), upstream.mark
    agent = factories.create_agent(where, mark)
    server = give(upstream, where, agent)
    token, text = create_token(boss, name=mark, role=role, agent_ids=[str(agent.pk)])
    principal = build_token_principal(token)
    skill = save_skill(boss, SkillSpec(name=f"{mark}-skill", text="Hello", agents=[agent.slug]))
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
    return begun(Party(mark, wire, agent, text, ids))


def twin(of: Party) -> Party:
    """Return another principal with the very same rights."""
    boss = factories.build_administrator(of.agent.organization)
    _, text = create_token(boss, name="twin", role=Role.MEMBER, agent_ids=[str(of.agent.pk)])
    return begun(replace(of, token=text))


def begun(one: Party) -> Party:
    """Return a party that has a task and a request that goes on."""
    work = {"name": one.tool("work"), "arguments": {}}
    task = one.ask(one.home, "tools/call", work).result
    ask = {"name": one.tool("ask"), "arguments": {}}
    asked = one.ask(one.home, "tools/call", ask).result
    return replace(one, task=task["taskId"], states={"tools/call": asked["requestState"]})


@dataclass(frozen=True)
class Probe:
    """One request that names what is somebody else's, and the same that names nothing.

    `theirs` is what the owner gets an answer to at `home`: it shows that the request is a sound
    one; blank where it would change something.
    """

    path: str
    foreign: Json
    unknown: Json
    names: tuple[str, ...] = ()
    home: str = ""
    headers: tuple[Json, Json] = ({}, {})


Row = Callable[[Party, Party], Iterator[Probe]]
"""From a stranger and an owner to what the stranger tries."""


def _named(member: str, foreign: str, unknown: str, path: str, home: str, **more: Any) -> Probe:
    return Probe(
        path, {member: foreign, **more}, {member: unknown, **more}, (foreign, unknown), home
    )


def lists(me: Party, other: Party) -> Iterator[Probe]:
    """Nothing is named: what is seen must be one's own."""
    for path in (me.home, ROOT):
        yield Probe(path, {}, {}, home=other.home)


def tools(me: Party, other: Party) -> Iterator[Probe]:
    """The other's tool, agent, and whatever else a tool of the organization takes the id of."""
    call = {"arguments": {}}
    yield _named("name", other.tool("echo"), other.tool("none"), me.home, other.home, **call)
    says = {"arguments": {"message": "Hi", "wait_s": 0}}
    chat = build_chat_tool_name(other.agent)
    yield replace(_named("name", chat, f"{NOWHERE}_chat", ROOT, ROOT, **says), home="")
    for tool in me.ask(ROOT, "tools/list", {}).result["tools"]:
        yield from _taking_ids(tool, other)
    yield from states("tools/call", me, other)


def _taking_ids(tool: Json, other: Party) -> Iterator[Probe]:
    form = tool["inputSchema"]
    for name in form["properties"]:
        if not name.endswith("_id"):
            continue
        foreign = other.ids.get(name) or str(uuid4())
        said = {
            each: other.ids.get(each, str(uuid4())) if each.endswith("_id") else "x"
            for each in form.get("required", ())
        }
        probe = {**said, name: foreign}, {**said, name: str(uuid4())}
        called = [{"name": tool["name"], "arguments": one} for one in probe]
        yield Probe(ROOT, called[0], called[1], (probe[0][name], probe[1][name]))


def states(method: str, me: Party, other: Party) -> Iterator[Probe]:
    """The other's state, for the very request that it belongs to where that can be sent."""
    same = me.agent == other.agent
    owner = other if same else me
    request = {"name": owner.tool("ask"), "arguments": {}, "inputResponses": {}}
    state = other.states[method]
    yield replace(
        _named("requestState", state, f"{state[:-8]}AAAAAAA=", me.home, "", **request), names=()
    )


def reading(me: Party, other: Party) -> Iterator[Probe]:
    """The other's resource, through its agent and of the organization."""
    uri = f"{other.mark}+mem://{other.mark}"
    yield _named("uri", uri, f"{NOWHERE}+mem://x", me.home, other.home)
    for kind in ("agent", "session", "workflow"):
        own, none = (f"bonobot://{kind}s/{one}" for one in (other.ids[f"{kind}_id"], uuid4()))
        yield _named("uri", own, none, ROOT, ROOT)
    yield _named("uri", f"bonobot://agents/{other.agent.slug}", "bonobot://agents/no", ROOT, ROOT)


def prompting(me: Party, other: Party) -> Iterator[Probe]:
    """The other's prompt and skill."""
    prompt = f"{other.mark}.{other.mark}-greet"
    yield _named("name", prompt, f"{NOWHERE}.greet", me.home, other.home)
    yield _named("name", f"{other.mark}-skill", f"{NOWHERE}-skill", ROOT, ROOT)


def completing(me: Party, other: Party) -> Iterator[Probe]:
    """What the other's prompts, templates and names begin with."""
    for path, home, kind, member, foreign in (
        (me.home, other.home, "ref/prompt", "name", f"{other.mark}.{other.mark}-greet"),
        (me.home, other.home, "ref/resource", "uri", f"{other.mark}+{other.mark}://{{id}}"),
        (ROOT, ROOT, "ref/prompt", "name", f"{other.mark}-skill"),
    ):
        refs = [{"ref": {"type": kind, member: one}} for one in (foreign, NOWHERE)]
        argument = {"name": "id" if member == "uri" else "name", "value": ""}
        said = [{**ref, "argument": argument} for ref in refs]
        yield Probe(path, said[0], said[1], (foreign, NOWHERE), home)
    for kind, begun in (("agents", other.mark), ("sessions", other.ids["session_id"][:18])):
        ref = {"type": "ref/resource", "uri": f"bonobot://{kind}/{{id}}"}
        said = [{"ref": ref, "argument": {"name": "id", "value": it}} for it in (begun, NOWHERE)]
        yield Probe(ROOT, said[0], said[1], (begun, NOWHERE), ROOT)


def about_tasks(me: Party, other: Party) -> Iterator[Probe]:
    """The other's task, at one's own address and at the organization's."""
    none = f"{other.task[:-8]}AAAAAAA="
    for path in (me.home, ROOT):
        home = other.home if path == me.home else ""
        probe = _named("taskId", other.task, none, path, home, inputResponses={})
        yield replace(probe, headers=({"Mcp_Name": other.task}, {"Mcp_Name": none}))


def sessions(me: Party, other: Party) -> Iterator[Probe]:
    """Nothing but the session itself says whose it is, which is tried for every method."""
    yield from ()


def watching(me: Party, other: Party) -> Iterator[Probe]:
    """The other's resource: that it is watched tells nothing, and nothing is told of it."""
    own, none = (f"bonobot://sessions/{one}" for one in (other.ids["session_id"], uuid4()))
    yield _named("uri", own, none, ROOT, ROOT)


ROWS: dict[str, Row] = {
    **dict.fromkeys(("tools/list", "resources/list", "prompts/list"), lists),
    **dict.fromkeys(("resources/templates/list", "server/discover"), lists),
    **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), about_tasks),
    **dict.fromkeys(("initialize", "logging/setLevel"), sessions),
    **dict.fromkeys(("resources/subscribe", "resources/unsubscribe"), watching),
    "tools/call": tools,
    "resources/read": reading,
    "prompts/get": prompting,
    "completion/complete": completing,
    # What is told on a stream is looked at by itself.
    "subscriptions/listen": sessions,
}
# What only belongs to somebody by who asked for it, whatever they may do.
PERSONAL: dict[str, Row] = {
    **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), about_tasks),
    "tools/call": lambda me, other: states("tools/call", me, other),
}
