"""`bonobot agents …`: agents, their runs and their policies."""

import argparse
from collections.abc import Callable
from typing import Any

from django.db.models import Count, Q

from agents.drafts import draft_of
from agents.governance.explaining import explain
from agents.governance.kits import KITS
from agents.governance.snapshots import snapshots
from agents.models import Agent, ModelEndpoint, Session
from agents.registration import AgentSpec, add_agent, alter_agent, remove_agent
from agents.tool_policies import policy_text, set_policy
from bonobot.cli import chat, keeping, replaying, running, watching
from bonobot.cli.agent_bounds import SET
from bonobot.cli.group import Cli, Verb, table
from bonobot.lib.problems import NotFound
from bonobot.lib.untrusted import visible

MARKS = {"allow": "✓", "ask": "?", "deny": "✗", "skip": "–"}
# Of an agent's sessions, those that somebody should know of: they run, or wait for a person.
BUSY = (Session.Status.RUNNING.value, Session.Status.WAITING.value)


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
        "builtin_tools": agent.builtin_tools,
        "servers": [b.server.slug for b in agent.bindings.select_related("server")],
        "policy": {"mode": policy.mode, "allow": policy.allow, "deny": policy.deny},
    }


def _list(cli: Cli, options: argparse.Namespace) -> None:
    mine = Agent.objects.for_organization(cli.principal.organization_id)
    busy = {f"{status}_sessions": _sessions(status) for status in BUSY}

    def look() -> list[dict[str, Any]]:
        agents = mine.select_related("model_endpoint").annotate(**busy)
        return [as_json(one) | {name: getattr(one, name) for name in busy} for one in agents]

    watching.show(cli, options, look, _drawn)


def _sessions(status: str) -> Count:
    return Count("sessions", filter=Q(sessions__status=status))


def _drawn(found: list[dict[str, Any]]) -> Any:
    rows = [
        (
            *(a["slug"], a["name"], a["model"], a["policy"]["mode"]),
            *(a[f"{status}_sessions"] for status in BUSY),
            ", ".join(a["servers"]),
        )
        for a in found
    ]
    empty = "No agents yet. Make one: bonobot agents add NAME"
    columns = ("SLUG", "NAME", "MODEL", "POLICY", *(status.upper() for status in BUSY), "SERVERS")
    return table(*columns, rows=rows, empty=empty)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--slug")
    parser.add_argument("--instructions", default="")
    parser.add_argument("--description", default="")
    parser.add_argument("--model", metavar="SLUG", help="a model endpoint (default: the first)")
    parser.add_argument(
        "--builtin",
        action="append",
        choices=list(KITS),
        help="built-in tools that it has; may be given several times",
    )


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
        builtin_tools=options.builtin,
    )
    agent = add_agent(cli.principal, spec)
    cli.emit(as_json(agent))
    cli.say(f"{agent.slug} is made; its policy blocks every tool until you change it:")
    cli.say(f"bonobot agents policy {agent.slug} --mode all")


def _policy_arguments(parser: argparse.ArgumentParser) -> None:
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("slug", metavar="SLUG", nargs="?", help="the agent")
    whose.add_argument(
        "--organization", action="store_true", help="the organization's own, over every agent"
    )
    replaying.policy_arguments(parser)
    deeds = parser.add_mutually_exclusive_group()
    deeds.add_argument(
        "--shadow", action="store_true", help="only record what it would decide, beside the policy"
    )
    deeds.add_argument(
        "--enforce", action="store_true", help="make what runs in the shadow the policy"
    )
    deeds.add_argument("--discard", action="store_true", help="drop what runs in the shadow")


def _policy(cli: Cli, options: argparse.Namespace) -> None:
    if options.organization:
        replaying.own_policy(cli, options)
        return
    agent = find(cli, options.slug)
    replaying.drafted(cli, agent, options)
    wanted = None if options.shadow else replaying.wanted(agent, options)
    if wanted is not None:
        set_policy(cli.principal, agent, wanted)
    now, draft = policy_text(agent), draft_of(agent)
    tools = snapshots().current("agent", agent.pk).tools
    effective = [
        {
            "name": name,
            "allowed": tool.decision.allowed,
            "decision": tool.decision.verdict,
            "code": tool.decision.code,
        }
        for name, tool in sorted(tools.items())
    ]
    cli.emit(
        {
            **now.as_dict(),
            "tools": effective,
            "draft": draft.as_dict() if draft else None,
        },
        table(
            "TOOL",
            "DECISION",
            "WHY",
            rows=[(t["name"], t["decision"], t["code"]) for t in effective],
            empty="This agent has no tools: give it a server first.",
        ),
    )
    cli.say(replaying.in_a_line(now))
    replaying.say_draft(cli, agent, draft)


def _explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG")
    parser.add_argument("tool", metavar="TOOL")
    parser.add_argument("--arguments", metavar="JSON", help="what a call with these would come to")


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
    given = options.arguments
    arguments = replaying.json_object(given, "--arguments") if given else None
    told = explain(cli.principal, snapshot, tool, arguments)
    rows = [
        (
            stage["stage"].replace("_", " "),
            MARKS[stage["verdict"]],
            stage["rule"],
            stage["reason"],
            stage["who"] if stage["verdict"] in ("ask", "deny") else "",
        )
        for stage in told["stages"]
    ]
    columns = ("STAGE", "", "RULE", "REASON", "WHO CAN CHANGE IT")
    cli.emit(told, table(*columns, rows=rows, empty=""))
    if told["allowed"]:
        cli.say("allowed")
        return
    where = told["first"].replace("_", " ")
    cli.say(visible(f"{told['code']} ({where}): {told['reason']} {told['remedy']}"))
    cli.say(f"Who can change it: {told['who']}.")


def _remove(cli: Cli, options: argparse.Namespace) -> None:
    agent = find(cli, options.slug)
    remove_agent(cli.principal, agent)
    cli.emit({"removed": options.slug})
    cli.say(f"{options.slug} is removed.")


def _switch(enabled: bool) -> Callable[[Cli, argparse.Namespace], None]:
    def switch(cli: Cli, options: argparse.Namespace) -> None:
        agent = find(cli, options.slug)
        alter_agent(cli.principal, agent, AgentSpec(name=agent.name, enabled=enabled))
        cli.emit({"slug": agent.slug, "enabled": agent.enabled})
        cli.say(f"{agent.slug} is on." if enabled else f"{agent.slug} is off; its sessions end.")

    return switch


def _switch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG")


VERBS = (
    Verb(
        "list",
        "List the agents, with their sessions that run or wait.",
        _list,
        watching.declare_watch,
        ("agents list --json", "agents list --watch"),
    ),
    Verb("add", "Make an agent.", _add, _add_arguments, ("agents add Helper",)),
    Verb(
        "run",
        "Give an agent a message and wait for its answer.",
        running.run,
        running.declare,
        (
            'agents run demo "What time is it in Asia/Tokyo?"',
            'agents run demo "Delete the branch" --wait',
            'agents run demo "What is in it?" --attach notes.txt',
        ),
    ),
    Verb(
        "chat",
        "Talk to an agent, in the terminal or from a pipe (a message a line).",
        chat.chat,
        chat.declare,
        (
            "agents chat demo",
            "agents chat demo --session 0198c0de-…",
            "agents chat demo < questions.txt",
        ),
    ),
    Verb(
        "retry",
        "Send a message of a session again, in its place, and wait for the answer.",
        running.retry,
        running.declare_retry,
        (
            "agents retry 0198c0de-…",
            'agents retry 0198c0de-… --message 5 --text "In other words"',
        ),
    ),
    Verb(
        "export-session",
        "Write a session down: as Markdown, or as JSON with every step.",
        keeping.export,
        keeping.declare,
        (
            "agents export-session 0198c0de-… --output talk.md",
            "agents export-session 0198c0de-… --as json",
        ),
    ),
    Verb(
        "policy",
        "Show or change which tools an agent may call.",
        _policy,
        _policy_arguments,
        (
            "agents policy demo",
            "agents policy demo --mode allowlist --allow 'mcp_time_*'",
            "agents policy --organization --deny 'mcp_shell_*'",
            """agents policy demo --ask '{"tool": "mcp_time_*", "when": {"required": ["zone"]}}'""",
            "agents policy demo --shadow --ask 'mcp_git_*'",
            "agents policy demo --enforce",
        ),
    ),
    SET,
    Verb(
        "enable", "Switch an agent on.", _switch(True), _switch_arguments, ("agents enable demo",)
    ),
    Verb(
        "disable",
        "Switch an agent off: its sessions end, nothing of it runs.",
        _switch(False),
        _switch_arguments,
        ("agents disable demo",),
    ),
    Verb(
        "remove",
        "Remove an agent with its sessions, bindings and own servers; the audit stays.",
        _remove,
        _switch_arguments,
        ("agents remove demo",),
    ),
    Verb(
        "explain",
        "Say why an agent can, or can't, use a tool.",
        _explain,
        _explain_arguments,
        (
            "agents explain demo mcp_git_git_commit",
            """agents explain demo mcp_time_get_current_time --arguments '{"timezone": "UTC"}'""",
        ),
    ),
)
