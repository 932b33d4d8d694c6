"""Build the system prompt and the tool specs for a model."""

from collections.abc import Iterable, Sequence

from agents.builtin_tools.toolsets.default_tools import READ_SKILL
from agents.builtin_tools.toolsets.find_tools import FIND_TOOLS
from agents.calls.explain import find_no_tools_reason
from agents.calls.snapshots import CallSnapshot, SnapshotTool
from agents.llm import interface as llm_interface
from agents.llm.messages import EXPLAINED

# Maximum number of names in a list.
NAMED_AT_MOST = 50
# Maximum length of a server's instructions, in characters.
NOTE_LENGTH = 2_048
# Maximum length of a tool's description, in characters.
DESCRIPTION_SHOWN = 1_024


def build_instructions(
    own: str,
    snapshot: CallSnapshot,
    unavailable: Sequence[str],
    news: Sequence[str] = (),
    shown: Sequence[SnapshotTool] | None = None,
) -> str:
    """Return the agent's instructions with the section on tools.

    `server_changes` are lines on servers connected or disconnected since the last turn;
    `shown_tools` are the tools that the model is shown (default: all that it may call).
    """
    shown = snapshot.offered() if shown is None else shown
    tools = _render_tools_section(snapshot, unavailable, news, shown)
    return "\n\n".join(
        part for part in (own.strip(), tools, _render_skills_section(snapshot)) if part
    )


def build_tool_specs(tools: Iterable[SnapshotTool]) -> list[llm_interface.ToolSpec]:
    """Return the tools' specs for a model."""
    return [
        llm_interface.ToolSpec(one.name, one.description[:DESCRIPTION_SHOWN], one.input_schema)
        for one in tools
    ]


def _render_skills_section(snapshot: CallSnapshot) -> str:
    """Return the section on skills; empty if the agent can't read any."""
    reader = snapshot.tools.get(READ_SKILL.name)
    if not snapshot.skills or reader is None or not reader.decision.offered:
        return ""
    lines = [
        "## Skills",
        f"Instructions for tasks: read the one that fits with `{READ_SKILL.name}` first.",
    ]
    lines += [
        f"- {skill.name}: {skill.description or skill.title}".rstrip(": ")
        for skill in list(snapshot.skills.values())[:NAMED_AT_MOST]
    ]
    return "\n".join(lines)


def _render_tools_section(
    snapshot: CallSnapshot,
    unavailable: Sequence[str],
    news: Sequence[str],
    given: Sequence[SnapshotTool],
) -> str:
    offered = snapshot.offered()
    lines = ["## MCP Tools"]
    servers = sorted({tool.facts.server_name for tool in offered if tool.facts.server_name})
    if servers:
        lines.append(f"Tools come from these servers: {', '.join(servers)}.")
    elif not offered:
        lack = find_no_tools_reason(snapshot)
        lines.append(f"You have no tools now. {lack or ''}".rstrip())
    if more := len(offered) - len(given):
        lines.append(
            f"You can call {more} tools more than you are shown. Look for the one that you need "
            f"with `{FIND_TOOLS}` before you say that something can't be done."
        )
    lines.append(EXPLAINED)
    lines += [_note(snapshot, name) for name in servers if snapshot.notes.get(name)]
    if asking := [tool.name for tool in given if not tool.decision.allowed]:
        shown = ", ".join(asking[:NAMED_AT_MOST])
        lines.append(
            f"A person is asked before these run, so call them only where needed: {shown}."
        )
    lines += [f"Since your last turn: {line}" for line in news]
    lines += [f"Not reachable now: {name}." for name in unavailable]
    if blocked := list(_list_blocked_tools(snapshot)):
        shown = ", ".join(blocked[:NAMED_AT_MOST])
        lines.append(f"Disabled, do not use: {shown}.")
    return "\n".join(lines)


def _list_blocked_tools(snapshot: CallSnapshot) -> Iterable[str]:
    """Yield the names of denied tools of attached servers; built-in ones are not listed."""
    for name, tool in sorted(snapshot.tools.items()):
        if not tool.decision.offered and _should_list_tool(tool):
            yield name


def _note(snapshot: CallSnapshot, name: str) -> str:
    note = snapshot.notes[name]
    cut = "…" if len(note) > NOTE_LENGTH else ""
    return f"What the server {name} says about its tools: {note[:NOTE_LENGTH]}{cut}"


def _should_list_tool(tool: SnapshotTool) -> bool:
    return tool.facts.source == "mcp" and tool.facts.state != "gone"
