"""Every verb of every group, also those that come later: help, examples, bad usage, and a run.

A verb that has no call in `filled.CALLS` fails here.
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
from bonobot.core.cli.command_group import CommandGroup, CommandVerb
from bonobot.management.command_groups import COMMAND_GROUPS, is_read_command
from tests import factories
from tests.agents.cli.example_organization import CALLS, Call, answering, fill
from tests.command_line import Bonobot
from tests.processes import environment

GROUPS = {
    name: command
    for name, app in sorted(get_commands().items())
    if app == "bonobot" and isinstance(command := load_command_class("bonobot", name), CommandGroup)
}
for _command in GROUPS.values():
    _command._called_from_command_line = True  # as `run_from_argv` does: usage errors exit
# What all share is changed by these, so they run after the others: `agents` switches the agent off,
# and beside a second organization, which `org` makes, a verb has to be told which is meant.
LAST = ("agents", "org")
VERBS = [
    pytest.param(name, verb, id=f"{name} {verb.name}")
    for name, command in GROUPS.items()
    for verb in command.verbs
]


@cache
def parser_of(group: str) -> ArgumentParser:
    """Return what reads a group's arguments; each reading begins anew."""
    return GROUPS[group].create_parser("bonobot", group)


def test_all_command_groups_are_found() -> None:
    assert {"mcp", "agents", "tools", "tokens", "audit"} <= GROUPS.keys()


@pytest.mark.parametrize(("group", "verb"), VERBS)
def test_a_verb_has_help_and_examples(group: str, verb: CommandVerb) -> None:
    assert verb.help[0].isupper()
    assert ". " not in verb.help or verb.help.endswith("."), "several sentences"
    assert verb.examples, "an example shows more than a synopsis"
    for example in verb.examples:
        assert shlex.split(example)[:2] == [group, verb.name]


@pytest.mark.parametrize(("group", "verb"), VERBS)
def test_bad_usage_of_a_verb_exits_with_2(
    group: str, verb: CommandVerb, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = parser_of(group)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([verb.name, "--no-such-option"])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.err
    assert not printed.out


@pytest.mark.parametrize(("group", "verb"), VERBS)
def test_a_verb_accepts_json(
    group: str, verb: CommandVerb, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = parser_of(group)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([verb.name, "--help"])
    assert ended.value.code == 0
    assert "--json" in capsys.readouterr().out


# --- on a small organization


@pytest.fixture(scope="module")
def acme(module_rows: None) -> Organization:
    """The only organization, which all groups share: what one removes is its own."""
    return factories.create_organization()


@pytest.fixture(scope="module")
def known(
    acme: Organization, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, str]]:
    """Fill the organization; what the calls know by name."""
    folder = tmp_path_factory.mktemp("verbs")
    with answering() as http, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        found = fill(acme, http.url, folder)
        patch.setenv("BONOBOT_TOKEN", found["@secret"])
        yield found
    # The database is emptied after the module: this process's runner looks for its row again.
    get_session_runner()._renewed_at = 0.0


@pytest.fixture(autouse=True)
def _no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


class Pipe:
    """A standard input that says the same to each who reads it."""

    def isatty(self) -> bool:
        """Say that nobody is there."""
        return False

    def __iter__(self) -> Iterator[str]:
        """Say one line."""
        yield "Hello\n"


@pytest.fixture(autouse=True)
def _piped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Pipe())


@pytest.fixture(autouse=True)
def _receivers_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send_all(posts: Sequence[object]) -> list[str]:
        return ["" for _ in posts]

    monkeypatch.setattr("bonobot.notifications.webhooks.send_requests", send_all)


def test_every_verb_is_covered() -> None:
    assert {f"{name} {verb.name}" for name, c in GROUPS.items() for verb in c.verbs} == set(CALLS)


@pytest.mark.parametrize("group", GROUPS)
def test_verbs_refuse_unknown_objects(
    group: str, known: Mapping[str, str], bonobot: Bonobot
) -> None:
    for name, call in _calls_of(group):
        ran = bonobot(group, name, *call.unknown, "--json")
        assert (name, ran.status, ran.out) == (name, 1, ""), ran.err
        assert (name, ran.error["code"]) == (name, call.code)
        assert (name, ran.error.get("remedy", "")) > (name, "")
        told = bonobot(group, name, *call.unknown, terminal=True)
        assert (name, told.status) == (name, 1)
        assert f"{call.code}" in told.err
        assert "→" in told.err
        assert "\x1b" not in told.out + told.err


@pytest.mark.parametrize("group", [*(name for name in GROUPS if name not in LAST), *LAST])
def test_verbs_print_json_and_text(group: str, known: Mapping[str, str], bonobot: Bonobot) -> None:
    for name, call in _calls_of(group):
        run = partial(_run, bonobot, group, name, call, known)
        # What is told as “3 s ago” is the same in two runs of one moment.
        with time_machine.travel(datetime.now(UTC), tick=False) if call.reads else nullcontext():
            found, told = run(0, "--json"), run(1, terminal=True)
            assert json.loads(found) is not None, name
            assert not told.startswith(("{", "[")), name
            if call.reads:
                assert (name, run(2, "--json")) == (name, found)
                assert (name, run(3, terminal=True)) == (name, told)


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
    acme: Organization, known: Mapping[str, str]
) -> None:
    lines = [
        [group, verb, *CALLS[f"{group} {verb}"].arguments(0, known), "--org", acme.slug]
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
        env=environment({"DJANGO_SETTINGS_MODULE": "bonobot.settings.read_commands"}),
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
    known: Mapping[str, str],
    number: int,
    *more: str,
    terminal: bool = False,
) -> str:
    ran = bonobot(group, verb, *call.arguments(number, known), *more, terminal=terminal)
    assert (verb, ran.status) == (verb, 0), ran.err + ran.out
    assert "\x1b" not in ran.out + ran.err, verb
    assert ran.out.strip(), verb
    return str(ran.out)


def _calls_of(group: str) -> Iterator[tuple[str, Call]]:
    for verb in GROUPS[group].verbs:
        yield verb.name, CALLS[f"{group} {verb.name}"]
