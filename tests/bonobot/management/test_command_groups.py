"""Command groups: registered with Django, and imported when they are used."""

import os
import subprocess
import sys
from pkgutil import resolve_name

import pytest
from django.core.management import get_commands, load_command_class

from bonobot.core.cli.command_group import CommandGroup
from bonobot.management.command_groups import (
    COMMAND_GROUPS,
    list_other_commands,
    list_own_commands,
)

EVERY_SOURCE = [
    (source, names.split())
    for entry in COMMAND_GROUPS.values()
    for source, names in entry.verbs.items()
]
OVERVIEW = """
import sys
from bonobot.__main__ import format_overview
text = format_overview("bonobot")
assert "Manage MCP servers: add, refresh, review, test, enable, and disable them" in text, text
print(sorted(name for name in sys.modules if name.startswith(("agents.cli.", "mcp_servers.cli."))))
import django
from django.core.management import load_command_class
from bonobot.management.command_groups import COMMAND_GROUPS
django.setup()
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


def test_the_names_of_verbs_are_those_of_their_tuple():
    for source, names in EVERY_SOURCE:
        assert [verb.name for verb in resolve_name(source)] == names, (
            f"correct the verbs of {source} in bonobot/management/command_groups.py"
        )


def test_helps_are_listed_for_every_command_of_ours():
    commands = {name: load_command_class(app, name) for name, app in get_commands().items()}
    helps = list_own_commands()
    assert {name for name, app in get_commands().items() if app == "bonobot"} == set(helps)
    assert {name for name, app in get_commands().items() if app != "bonobot"} == set(
        list_other_commands()
    )
    for name, text in helps.items():
        assert commands[name].help.startswith(text)


def test_a_verb_is_parsed_without_the_other_verbs():
    command = load_command_class("bonobot", "mcp")
    command.verb_name = "list"
    assert [verb.name for verb in command._list_parsed_verbs()] == ["list"]
    command.verb_name = ""
    assert command._list_parsed_verbs() == command.verbs


def test_verbs_are_imported_when_they_are_used_and_never_with_the_libraries_of_rest():
    result = subprocess.run(
        [sys.executable, "-c", OVERVIEW],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"DATABASE_URL": ""},
    )
    assert result.stdout.split("\n") == ["[]", "[]", ""], result.stderr
