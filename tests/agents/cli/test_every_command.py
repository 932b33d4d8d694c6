"""Every verb of every command group: help, examples, invalid usage, and a run.

Verbs are discovered; a verb without an entry in `example_organization.CALLS` fails here.
"""

import json
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import cache, partial

import pytest
import time_machine
from django.core.management import get_commands, load_command_class

from agents.sessions.worker import get_session_runner
from bonobot.accounts.models import Organization
from bonobot.core.cli.command_group import CommandGroup
from bonobot.management.command_groups import (
    COMMAND_GROUPS,
    COMMAND_HELPS,
    is_read_command,
    replace_renamed,
)
from tests import factories
from tests.agents.cli.example_organization import CALLS, Call, create_example_objects, run_server
from tests.command_line import Bonobot
from tests.processes import build_environment

GROUPS = {
    name: command
    for name, app in sorted(get_commands().items())
    if app == "bonobot" and isinstance(command := load_command_class("bonobot", name), CommandGroup)
}
for _command in GROUPS.values():
    _command._called_from_command_line = True  # as `run_from_argv` does: usage errors exit
# These change shared objects, so they run last: `agents` disables the agent, and `org` creates a
# second organization, after which each verb requires `--org`.
LAST = ("agents", "org")
VERBS = [(name, verb) for name, command in GROUPS.items() for verb in command.verbs]


@cache
def get_parser(group: str) -> ArgumentParser:
    """Return the argument parser of a group; it is stateless and can be reused."""
    return GROUPS[group].create_parser("bonobot", group)


def test_all_command_groups_are_found() -> None:
    assert {"mcp", "agents", "tools", "tokens", "audit"} <= GROUPS.keys()


def test_a_verb_has_help_and_examples() -> None:
    for group, verb in VERBS:
        name = f"{group} {verb.name}"
        assert verb.help[0].isupper(), name
        assert ". " not in verb.help or verb.help.endswith("."), f"{name}: several sentences"
        assert verb.examples, f"{name}: an example shows more than a synopsis"
        for example in verb.examples:
            words = shlex.split(example)
            assert words[:2] == [group, verb.name], name
            assert replace_renamed(words)[1] == [], f"{name}: an example has an old name"


@pytest.mark.parametrize("name", sorted(COMMAND_HELPS.keys() - {"beat"}))  # it has no options
def test_a_command_without_verbs_has_examples(name: str) -> None:
    parser = load_command_class("bonobot", name).create_parser("bonobot", name)
    _help, _examples, lines = parser.format_help().partition("\nexamples:\n")
    assert f"  bonobot {name}" in lines


def test_bad_usage_of_a_verb_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for group, verb in VERBS:
        with pytest.raises(SystemExit) as raised:
            get_parser(group).parse_args([verb.name, "--no-such-option"])
        output = capsys.readouterr()
        assert (raised.value.code, output.out) == (2, ""), (group, verb.name)
        assert output.err, (group, verb.name)


def test_a_verb_accepts_json(capsys: pytest.CaptureFixture[str]) -> None:
    for group, verb in VERBS:
        with pytest.raises(SystemExit) as raised:
            get_parser(group).parse_args([verb.name, "--help"])
        assert raised.value.code == 0, (group, verb.name)
        assert "--json" in capsys.readouterr().out, (group, verb.name)


# --- on a small organization


@pytest.fixture(scope="module")
def acme(module_rows: None) -> Organization:
    """The only organization, shared by all groups; each group deletes only its own objects."""
    return factories.create_organization()


@pytest.fixture(scope="module")
def values(
    acme: Organization, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, str]]:
    """Create the example objects; return the values of the `@` names."""
    folder = tmp_path_factory.mktemp("verbs")
    with run_server() as http, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        created = create_example_objects(acme, http.url, folder)
        monkeypatch.setenv("BONOBOT_TOKEN", created["@secret"])
        yield created
    # The database is emptied after the module, so the runner has to look for its row again.
    get_session_runner()._renewed_at = 0.0


@pytest.fixture(autouse=True)
def _no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


class Pipe:
    """A standard input that returns the same line each time it is read."""

    def isatty(self) -> bool:
        """Return whether it is a terminal: no."""
        return False

    def __iter__(self) -> Iterator[str]:
        """Iterate over one line."""
        yield "Hello\n"


@pytest.fixture(autouse=True)
def _standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Pipe())


@pytest.fixture(autouse=True)
def _successful_webhooks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send_all(posts: Sequence[object]) -> list[str]:
        return ["" for _ in posts]

    monkeypatch.setattr("bonobot.notifications.webhooks.send_requests", send_all)


def test_every_verb_is_covered() -> None:
    assert {
        f"{name} {verb.name}" for name, command in GROUPS.items() for verb in command.verbs
    } == set(CALLS), "correct the names of `CALLS` in tests/agents/cli/example_organization.py"


@pytest.mark.parametrize("group", GROUPS)
def test_verbs_refuse_unknown_objects(
    group: str, values: Mapping[str, str], bonobot: Bonobot
) -> None:
    for name, call in _iterate_calls(group):
        result = bonobot(group, name, *call.unknown_args, "--json")
        assert (name, result.status, result.out) == (name, 1, ""), result.err
        assert (name, result.error["code"]) == (name, call.code)
        assert (name, result.error.get("remedy", "")) > (name, "")
        text = bonobot(group, name, *call.unknown_args, terminal=True)
        assert (name, text.status) == (name, 1)
        assert f"{call.code}" in text.err
        assert "→" in text.err
        assert "\x1b" not in text.out + text.err


@pytest.mark.parametrize("group", [*(name for name in GROUPS if name not in LAST), *LAST])
def test_verbs_print_json_and_text(group: str, values: Mapping[str, str], bonobot: Bonobot) -> None:
    for name, call in _iterate_calls(group):
        run = partial(_run, bonobot, group, name, call, values)
        # The clock stands still so that relative times like “3 s ago” are equal in both runs.
        with time_machine.travel(datetime.now(UTC), tick=False) if call.reads else nullcontext():
            output, text = run(0, "--json"), run(1, terminal=True)
            assert json.loads(output) is not None, name
            assert not text.startswith(("{", "[")), name
            if call.reads:
                assert (name, run(2, "--json")) == (name, output)
                assert (name, run(3, terminal=True)) == (name, text)


# Runs command lines with the settings of commands that only read, and prints what failed.
RUN_WITH_FEWER_APPS = """
import json, sys
import django
django.setup()
from django.apps import apps
from django.core.management import call_command
assert not apps.is_installed("django.contrib.admin")
for arguments in json.load(sys.stdin):
    try:
        call_command(*arguments)
    except BaseException as error:
        print(f"{arguments}: {error!r}", file=sys.stderr)
"""


def test_verbs_that_only_read_run_without_the_apps_of_admin_and_jobs(
    acme: Organization, values: Mapping[str, str]
) -> None:
    lines = [
        [group, verb, *CALLS[f"{group} {verb}"].build_arguments(0, values), "--org", acme.slug]
        for group, entry in COMMAND_GROUPS.items()
        for verb in entry.reads.split()
    ]
    assert all(map(is_read_command, lines))
    done = subprocess.run(
        [sys.executable, "-c", RUN_WITH_FEWER_APPS],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=build_environment({"DJANGO_SETTINGS_MODULE": "bonobot.settings.read_only_commands"}),
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "line", [[], ["mcp"], ["mcp", "--help"], ["mcp", "add"], ["migrate"], ["up"]]
)
def test_other_command_lines_run_with_all_apps(line: Sequence[str]) -> None:
    assert not is_read_command(line)


def _run(
    bonobot: Bonobot,
    group: str,
    verb: str,
    call: Call,
    values: Mapping[str, str],
    number: int,
    *options: str,
    terminal: bool = False,
) -> str:
    result = bonobot(
        group, verb, *call.build_arguments(number, values), *options, terminal=terminal
    )
    assert (verb, result.status) == (verb, 0), result.err + result.out
    assert "\x1b" not in result.out + result.err, verb
    assert result.out.strip(), verb
    return str(result.out)


def _iterate_calls(group: str) -> Iterator[tuple[str, Call]]:
    for verb in GROUPS[group].verbs:
        yield verb.name, CALLS[f"{group} {verb.name}"]
