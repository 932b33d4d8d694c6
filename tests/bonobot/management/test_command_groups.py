"""The groups of commands: known to Django, and imported when they are used."""

import subprocess
import sys

import pytest
from django.core.management import get_commands, load_command_class

from bonobot.core.cli.command_group import CommandGroup
from bonobot.management.command_groups import COMMAND_GROUPS

OVERVIEW = """
import sys
from bonobot.__main__ import format_overview
text = format_overview("bonobot")
assert "Manage MCP servers: add, discover, review, call, enable, and disable them" in text, text
print(sorted(name for name in sys.modules if name.startswith(("agents.cli.", "mcp_servers.cli."))))
"""


@pytest.mark.parametrize("name", COMMAND_GROUPS)
def test_a_group_is_a_command_with_verbs(name):
    command = load_command_class(get_commands()[name], name)
    assert isinstance(command, CommandGroup)
    names = [verb.name for verb in command.verbs]
    assert names
    assert len(set(names)) == len(names)


def test_no_verbs_are_imported_when_all_commands_are_listed():
    done = subprocess.run(
        [sys.executable, "-c", OVERVIEW], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr
