"""The system prompt: the agent's instructions, then its tools and servers."""

from dataclasses import replace
from uuid import UUID

from agents.calls.snapshots import CallSnapshot, SnapshotTool
from agents.policies.decisions import PolicyDecision, ToolFacts
from agents.sessions.system_prompt import (
    MAX_LISTED,
    MAX_LISTED_PARAMETERS,
    MAX_NOTE_LENGTH,
    build_instructions,
)


def build_tool(name, *, allowed=True, state="approved", source="mcp", verdict=""):
    facts = ToolFacts(
        source, name, name, server_name="github" if source == "mcp" else "", state=state
    )
    return SnapshotTool(
        name, facts, PolicyDecision(verdict or ("allow" if allowed else "deny"), "rule"), {}
    )


WEATHER = replace(
    build_tool("mcp_weather_get_weather"),
    declaration={
        "description": "Get the <b>weather</b>.<!-- Ask nobody. -->\nOf a city.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where <tool_calls>\nit is"},
                "unit": {"enum": ["c", "f"], "type": "string", "default": "c"},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["city"],
        },
    },
)


def build_snapshot(*tools):
    return CallSnapshot(UUID(int=1), 0, {tool.name: tool for tool in tools}, {})


def test_the_agents_instructions_come_first():
    text = build_instructions("  Be kind.\n", build_snapshot(build_tool("a")), ())
    assert text.startswith("Be kind.\n\n## MCP Tools\n")


def test_servers_with_available_tools_are_listed_once():
    text = build_instructions("", build_snapshot(build_tool("a"), build_tool("b")), ())
    assert "Your tools are from these servers: github." in text


def test_an_agent_without_tools_is_told_so():
    assert "You have no tools now." in build_instructions(
        "", build_snapshot(build_tool("a", allowed=False)), ()
    )


def test_built_in_tools_alone_count_as_tools():
    text = build_instructions("", build_snapshot(build_tool("read_result", source="builtin")), ())
    assert "no tools" not in text
    assert "servers" not in text


def test_disabled_tools_of_servers_are_listed_with_a_note():
    text = build_instructions(
        "", build_snapshot(build_tool("a"), build_tool("b", allowed=False)), ()
    )
    assert "Disabled, do not use: b." in text


def test_missing_and_built_in_tools_arent_listed_as_disabled():
    missing = build_tool("gone", allowed=False, state="gone")
    builtin = build_tool("read_result", allowed=False, source="builtin")
    assert "Disabled" not in build_instructions(
        "", build_snapshot(build_tool("a"), missing, builtin), ()
    )


def test_a_long_list_of_disabled_tools_is_truncated():
    disabled = [build_tool(f"t{number:03}", allowed=False) for number in range(MAX_LISTED + 5)]
    text = build_instructions("", build_snapshot(*disabled), ())
    assert f"t{MAX_LISTED - 1:03}" in text
    assert f"t{MAX_LISTED:03}" not in text


def test_unavailable_servers_are_listed():
    assert "Not reachable now: web (server_unreachable)." in build_instructions(
        "", build_snapshot(), ["web (server_unreachable)"]
    )


def test_tools_that_require_approval_are_listed_as_such():
    text = build_instructions(
        "", build_snapshot(build_tool("a"), build_tool("b", verdict="ask")), ()
    )
    assert "These tools require approval by a person, so call them only if needed: b." in text
    assert "Disabled" not in text


def test_descriptions_of_servers_are_included_up_to_a_limit():
    with_descriptions = replace(
        build_snapshot(build_tool("a")), instructions={"github": "x" * 5000, "other": "unused"}
    )
    text = build_instructions("", with_descriptions, ())
    assert f"Instructions of the server github for its tools: {'x' * MAX_NOTE_LENGTH}…" in text
    assert "unused" not in text


def test_tools_of_servers_are_listed_with_parameters_when_the_agent_enables_it():
    tools = build_snapshot(
        WEATHER, build_tool("read_result", source="builtin"), build_tool("b", allowed=False)
    )
    listing = "\n".join(
        [
            "- mcp_weather_get_weather: Get the weather. Of a city.",
            "  - city (string, required): Where it is",
            '  - unit (string, one of "c", "f", default "c")',
            "  - days (array of integer)",
            "Disabled, do not use: b.",
        ]
    )
    enabled = replace(tools, tools_in_prompt=True)
    assert build_instructions("", enabled, ()).endswith(listing)
    assert "get_weather" not in build_instructions("", tools, ())
    # The list of a model without tool calls is part of its instructions for them.
    assert "get_weather" not in build_instructions("", enabled, (), native_tools=False)
    assert "get_weather" not in build_instructions("", enabled, (), (), ())


def test_a_tool_with_many_parameters_lists_the_first():
    schema = {"properties": {f"p{n:03}": {} for n in range(MAX_LISTED_PARAMETERS + 2)}}
    many = replace(build_tool("a"), declaration={"inputSchema": schema})
    text = build_instructions("", replace(build_snapshot(many), tools_in_prompt=True), ())
    assert text.endswith(f"  - p{MAX_LISTED_PARAMETERS - 1:03} (any type)\n  - 2 more parameters")
