"""The groups of commands: known to Django, and imported when they are used."""

import os
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
from django.core.management import load_command_class
from bonobot.management.command_groups import COMMAND_GROUPS
for name in COMMAND_GROUPS:
    assert load_command_class("bonobot", name).verbs
heavy = {"charset_normalizer", "drf_spectacular.utils", "jinja2",
         "psycopg", "requests", "rest_framework.fields"}
print(sorted(heavy & set(sys.modules)))
"""


@pytest.mark.parametrize("name", COMMAND_GROUPS)
def test_a_group_is_a_command_with_verbs(name):
    command = load_command_class(get_commands()[name], name)
    assert isinstance(command, CommandGroup)
    names = [verb.name for verb in command.verbs]
    assert names
    assert len(set(names)) == len(names)


def test_verbs_are_imported_when_they_are_used_and_never_with_the_libraries_of_rest():
    done = subprocess.run(
        [sys.executable, "-c", OVERVIEW],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"DATABASE_URL": ""},
    )
    assert done.stdout.split("\n") == ["[]", "[]", ""], done.stderr
