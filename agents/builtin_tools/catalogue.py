"""Every built-in tool by its name."""

from agents.builtin_tools import editing, fetching, filesystem, searching, shell, versions
from agents.builtin_tools.finding import FINDING
from agents.builtin_tools.notes import FORGET, REMEMBER, SEARCH_NOTES
from agents.builtin_tools.resources import LIST_RESOURCES, READ_RESOURCE
from agents.builtin_tools.results import READ_RESULT
from agents.builtin_tools.skills import LIST_SKILLS, READ_SKILL
from agents.builtin_tools.tool import BuiltinTool

BUILTIN_TOOLS: dict[str, BuiltinTool] = {
    tool.name: tool
    for tool in (
        *(FINDING, READ_RESULT, LIST_RESOURCES, READ_RESOURCE, LIST_SKILLS, READ_SKILL),
        *(REMEMBER, SEARCH_NOTES, FORGET),
        *filesystem.TOOLS,
        *editing.TOOLS,
        *searching.TOOLS,
        *versions.TOOLS,
        *shell.TOOLS,
        *fetching.TOOLS,
    )
}
