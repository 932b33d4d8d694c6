"""The catalog of built-in tools has all toolsets, and the documentation all tools."""

import re

from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.builtin_tools.toolset_options import TOOLSETS
from tests.parts import ROOT

PAGE = (ROOT / "docs" / "built-in-tools.md").read_text(encoding="utf-8")
ROWS = {
    toolset: (set(re.findall(r"`(\w+)`", tools)), set(re.findall(r"`(\w+)`", options)))
    for toolset, tools, options in re.findall(r"^\| `(\w+)` \| (.+) \|(.*)\|$", PAGE, re.MULTILINE)
    if toolset in TOOLSETS
}


def test_each_toolset_has_tools() -> None:
    named = {tool.toolset for tool in BUILTIN_TOOLS.values() if tool.toolset}
    assert named == TOOLSETS.keys(), "correct `TOOLSETS`, or the field `toolset` of the tools"


def test_the_table_of_toolsets_has_each_tool_and_option() -> None:
    tools = {
        name: {tool.name for tool in BUILTIN_TOOLS.values() if tool.toolset == name}
        for name in TOOLSETS
    }
    expected = {
        name: (tools[name], {option.name for option in toolset.options})
        for name, toolset in TOOLSETS.items()
    }
    assert expected == ROWS, "correct the table of toolsets in docs/built-in-tools.md"


def test_tools_without_a_toolset_are_in_the_page() -> None:
    names = {tool.name for tool in BUILTIN_TOOLS.values() if not tool.toolset}
    missing = {name for name in names if f"`{name}`" not in PAGE}
    assert not missing, "add them to the sentence below the table in docs/built-in-tools.md"
