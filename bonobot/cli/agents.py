"""`bonobot agents …`: agents, their runs and their policies."""

import argparse
from contextlib import suppress
from typing import Any

from rich.json import JSON
from rich.padding import Padding
from rich.text import Text

from agents.governance.explaining import explain
from agents.governance.snapshots import snapshots
from agents.models import Agent, ModelEndpoint, Session, Step
from agents.registration import AgentSpec, add_agent
from agents.sessions.events import Event, follow
from agents.sessions.reports import report
from agents.sessions.requests import start
from agents.sessions.runner import session_runner
from agents.sessions.runners import any_alive
from agents.tool_policies import PolicyText, policy_text, set_policy
from bonobot.cli.group import Cli, Failed, Verb, table
from bonobot.lib.problems import NotFound, Unavailable
from bonobot.lib.runtime import runtime
from bonobot.lib.untrusted import visible

SHOWN = 2000


def find(cli: Cli, slug: str) -> Agent:
    """Return an agent by slug; raises `NotFound`."""
    found: Agent = Agent.objects.get_or_404(cli.principal.organization_id, slug=slug)
    return found


def as_json(agent: Agent) -> dict[str, Any]:
    """Return an agent as programs read it."""
    policy = policy_text(agent)
    return {
        "id": str(agent.pk),
        "slug": agent.slug,
        "name": agent.name,
        "description": agent.description,
        "enabled": agent.enabled,
        "model": agent.model_endpoint.name,
        "servers": [b.server.slug for b in agent.bindings.select_related("server")],
        "policy": {"mode": policy.mode, "allow": policy.allow, "deny": policy.deny},
    }


def _list(cli: Cli, options: argparse.Namespace) -> None:
    mine = Agent.objects.for_organization(cli.principal.organization_id)
    found = [as_json(agent) for agent in mine.select_related("model_endpoint")]
    rows = [
        (a["slug"], a["name"], a["model"], a["policy"]["mode"], ", ".join(a["servers"]))
        for a in found
    ]
    empty = "No agents yet. Make one: bonobot agents add NAME"
    cli.emit(found, table("SLUG", "NAME", "MODEL", "POLICY", "SERVERS", rows=rows, empty=empty))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--slug")
    parser.add_argument("--instructions", default="")
    parser.add_argument("--description", default="")
    parser.add_argument("--model", metavar="SLUG", help="a model endpoint (default: the first)")


def _add(cli: Cli, options: argparse.Namespace) -> None:
    endpoint = None
    if options.model:
        endpoint = ModelEndpoint.objects.get_or_404(
            cli.principal.organization_id, slug=options.model
        )
    spec = AgentSpec(
        name=options.name,
        slug=options.slug,
        description=options.description,
        instructions=options.instructions,
        model_endpoint=endpoint,
    )
    agent = add_agent(cli.principal, spec)
    cli.emit(as_json(agent))
    cli.say(f"{agent.slug} is made; its policy blocks every tool until you change it:")
    cli.say(f"bonobot agents policy {agent.slug} --mode all")


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG")
    parser.add_argument("text", metavar="TEXT", help="the message")
    parser.add_argument("--working-dir", default="", help="a folder to attach")
    parser.add_argument("--timeout", type=float, default=3600, metavar="SECONDS")


def _run(cli: Cli, options: argparse.Namespace) -> None:
    agent = find(cli, options.slug)
    session = start(cli.principal, agent, options.text, working_dir=options.working_dir)
    if not any_alive(besides=session_runner().runner_id):
        # No worker takes it: this process becomes a runner until the session rests.
        runtime().call(session_runner().take, session.pk)
    with cli.waiting(f"{agent.name} is working …"):
        _watch(cli, session, options.timeout)
    done = report(session.pk)
    cli.emit(done)
    if done["status"] != Session.Status.DONE:
        if done["error"]:
            cli.say(f"{done['status']}: {visible(done['error']['detail'])}")
        raise Failed
    cli.say(visible(done["answer"]))


def _watch(cli: Cli, session: Session, timeout_s: float) -> None:
    try:
        runtime().call(_follow, cli, session, timeout_s=timeout_s)
    except TimeoutError:
        raise Unavailable(
            f"The session {session.pk} is still running after {timeout_s:.0f} s.",
            code="still_running",
            remedy="It goes on; look at it in the admin, or give a longer --timeout.",
        ) from None


async def _follow(cli: Cli, session: Session) -> None:
    """Show each event once it is settled, until the session rests."""
    async for events in follow(session.pk):
        for event in events:
            if event.id is not None and not cli.as_json:
                _show(cli, event)


def _show(cli: Cli, event: Event) -> None:
    """Print a finished call or notice; the answer is printed at the end."""
    data = event.data
    if event.kind == Step.Kind.NOTICE:
        cli.out.print(f"! {visible(data['text'])}", style="yellow", markup=False)
    if event.kind != Step.Kind.CALL:
        return
    mark = {"done": ("✓", "green"), "unknown": ("?", "yellow")}.get(data["state"], ("✗", "red"))
    took = f" {data['duration_ms']} ms" if data.get("duration_ms") is not None else ""
    cli.out.print(Text.assemble((mark[0], mark[1]), f" {data['name']}", (took, "dim")))
    if data.get("arguments"):
        cli.out.print(Padding(JSON.from_data(data["arguments"]), (0, 4)))
    text = visible(data.get("text", ""), SHOWN)
    with suppress(ValueError):
        cli.out.print(Padding(JSON(text), (0, 4)))
        return
    cli.out.print(Padding(Text(text, style="dim"), (0, 4)))


def _policy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG")
    parser.add_argument("--mode", choices=("none", "allowlist", "denylist", "all"))
    parser.add_argument("--allow", action="append", metavar="TOOL", help="a name or glob")
    parser.add_argument("--deny", action="append", metavar="TOOL", help="a name or glob")


def _policy(cli: Cli, options: argparse.Namespace) -> None:
    agent = find(cli, options.slug)
    now = policy_text(agent)
    if options.mode or options.allow or options.deny:
        allow = now.allow if options.allow is None else tuple(options.allow)
        deny = now.deny if options.deny is None else tuple(options.deny)
        set_policy(cli.principal, agent, PolicyText(options.mode or now.mode, allow, deny))
        now = policy_text(agent)
    tools = snapshots().current("agent", agent.pk).tools
    effective = [
        {"name": name, "allowed": tool.decision.allowed, "code": tool.decision.code}
        for name, tool in sorted(tools.items())
    ]
    cli.emit(
        {"mode": now.mode, "allow": now.allow, "deny": now.deny, "tools": effective},
        table(
            "TOOL",
            "ALLOWED",
            "WHY NOT",
            rows=[(t["name"], "yes" if t["allowed"] else "no", t["code"]) for t in effective],
            empty="This agent has no tools: give it a server first.",
        ),
    )
    cli.say(
        f"mode {now.mode}; allow {', '.join(now.allow) or '–'}; deny {', '.join(now.deny) or '–'}"
    )


def _explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG")
    parser.add_argument("tool", metavar="TOOL")


def _explain(cli: Cli, options: argparse.Namespace) -> None:
    agent = find(cli, options.slug)
    snapshot = snapshots().current("agent", agent.pk)
    tool = snapshot.tools.get(options.tool)
    if tool is None:
        raise NotFound(
            f"The agent `{agent.slug}` has no tool {options.tool!r}.",
            code="unknown_tool",
            field="TOOL",
            remedy=f"`bonobot agents policy {agent.slug}` lists its tools.",
        )
    told = explain(snapshot, tool)
    rows = [
        (stage["stage"], "✓" if stage["allows"] else "✗", stage["rule"], stage["reason"])
        for stage in told["stages"]
    ]
    cli.emit(told, table("STAGE", "", "RULE", "REASON", rows=rows, empty=""))
    cli.say("allowed" if told["allowed"] else f"{told['code']}: {told['reason']} {told['remedy']}")


VERBS = (
    Verb("list", "List the agents.", _list, examples=("agents list --json",)),
    Verb("add", "Make an agent.", _add, _add_arguments, ("agents add Helper",)),
    Verb(
        "run",
        "Give an agent a message and wait for its answer.",
        _run,
        _run_arguments,
        ('agents run demo "What time is it in Asia/Tokyo?"',),
    ),
    Verb(
        "policy",
        "Show or change which tools an agent may call.",
        _policy,
        _policy_arguments,
        ("agents policy demo", "agents policy demo --mode allowlist --allow 'mcp_time_*'"),
    ),
    Verb(
        "explain",
        "Say why an agent can, or can't, use a tool.",
        _explain,
        _explain_arguments,
        ("agents explain demo mcp_git_git_commit",),
    ),
)
