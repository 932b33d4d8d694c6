"""Command groups: help, suggestions, tables, and confirmations."""

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.padding import Padding

from bonobot import __main__ as command
from bonobot.core.cli import command_group
from bonobot.core.cli.command_group import CommandContext
from bonobot.core.cli.pipe_console import PipeConsole
from bonobot.core.cli.text_table import build_table
from tests.processes import build_environment

ROOT = Path(__file__).parents[4]


class Terminal(StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class ClosedPipe(StringIO):
    """A pipe that nothing reads."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def print_table(stdout: StringIO) -> str:
    table = build_table("NAME", "STATE", rows=[("a", "one\ntwo"), ("longer", None)], empty="")
    cli = CommandContext(org=None, as_json=False, stdout=stdout, stderr=StringIO())
    cli.emit([], table)
    return stdout.getvalue()


def test_a_table_in_a_pipe_is_tab_separated_without_padding() -> None:
    lines = print_table(StringIO()).splitlines()
    assert lines[0] == "NAME\tSTATE"
    assert lines[2] == "longer\t"
    assert len(lines) == 3


def test_other_output_in_a_pipe_has_no_padding() -> None:
    out = StringIO()
    cli = CommandContext(org=None, as_json=False, stdout=out, stderr=StringIO())
    cli.out.print(Padding("{\n}", (0, 4)))
    assert out.getvalue() == "    {\n    }\n"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("Enable it: bonobot mcp enable a.b", "Enable it: bonobot mcp enable a.b --org acme"),
        (
            "Run `bonobot mcp install S`, or wait.",
            "Run `bonobot mcp install S --org acme`, or wait.",
        ),
        ("See: bonobot mcp launchers. More", "See: bonobot mcp launchers --org acme. More"),
        ("bonobot org resume --org b", "bonobot org resume --org b"),
        (
            "bonobot approvals deny 1   (or open it)",
            "bonobot approvals deny 1 --org acme   (or open it)",
        ),
        ("Run `bonobot up`. It starts", "Run `bonobot up`. It starts"),
    ],
)
def test_printed_commands_name_the_organization_of_the_command(text: str, printed: str) -> None:
    for org, expected in (("acme", printed), (None, text)):
        out = StringIO()
        CommandContext(org=org, as_json=False, stdout=out, stderr=out).print_message(text)
        assert out.getvalue() == f"{expected}\n"


def test_a_table_on_a_terminal_is_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    output = print_table(Terminal())
    assert "\t" not in output
    assert "longer" in output


def test_sentences_are_below_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [("web", "error", "It can't be reached. " * 5), ("time", "connected", "")]
    table = build_table("NAME", "STATE", "LAST ERROR", rows=rows, empty="", sentences_below=True)
    printed = {}
    for stream in (StringIO(), Terminal()):
        CommandContext(org=None, as_json=False, stdout=stream, stderr=stream).emit([], table)
        printed[type(stream)] = stream.getvalue().splitlines()
    assert printed[StringIO][0] == "NAME\tSTATE\tLAST ERROR"
    first, *lines = printed[Terminal]
    assert first.split() == ["NAME", "STATE"]
    assert [line.split()[:2] for line in lines[:2]] == [["web", "error"], ["time", "connected"]]
    assert lines[2].startswith("web: It can't be reached.")
    assert max(map(len, lines)) <= 80


def test_an_unknown_verb_suggests_the_one_that_is_most_like_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as raised:
        command.main(["agents", "lits"])
    assert raised.value.code == 2
    captured = capsys.readouterr()
    assert (
        "`bonobot agents lits` doesn't exist. Did you mean `bonobot agents list`?" in captured.err
    )
    assert "→ Run `bonobot agents --help`" in captured.err
    with pytest.raises(SystemExit):
        command.main(["agents", "zzz"])
    assert "Did you mean" not in capsys.readouterr().err


def test_the_help_of_a_group_has_no_options_of_django(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["tokens", "--help"])
    output = capsys.readouterr().out
    assert "revoke" in output
    assert "--pythonpath" not in output


@pytest.mark.parametrize("answer", [True, False])
def test_a_deletion_on_a_terminal_runs_only_if_it_is_confirmed(
    monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    questions: list[str] = []

    def confirm(cli: CommandContext, question: str) -> bool:
        questions.append(question)
        return answer

    monkeypatch.setattr(CommandContext, "can_ask", property(lambda cli: True))
    monkeypatch.setattr(CommandContext, "confirm", confirm)
    cli = CommandContext(org=None, as_json=False, stdout=StringIO(), stderr=StringIO())
    options = {"confirmation": "Delete {slug}?", "slug": "demo\x1b[2J", "yes": False}
    if answer:
        command_group._confirm(cli, options)
    else:
        with pytest.raises(command_group.Conflict) as raised:
            command_group._confirm(cli, options)
        assert raised.value.code == "not_confirmed"
    assert len(questions) == 1
    assert "\x1b" not in questions[0]
    command_group._confirm(cli, options | {"yes": True})
    assert len(questions) == 1


@pytest.mark.parametrize("arguments", [["--no-color"], []])
def test_no_color_prints_no_escape_sequences(arguments: list[str]) -> None:
    stdout = Terminal()
    cli = CommandContext(
        org=None,
        as_json=False,
        stdout=stdout,
        stderr=StringIO(),
        no_color=bool(arguments),
    )
    cli.out.print("text", style="bold red")
    assert ("\x1b" in stdout.getvalue()) is (not arguments)


def test_a_console_raises_a_broken_pipe_instead_of_exiting() -> None:
    with pytest.raises(BrokenPipeError):
        PipeConsole(file=ClosedPipe()).print("a line")


def test_a_closed_pipe_ends_the_command_without_a_traceback() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    result = subprocess.run(
        [sys.executable, "-m", "bonobot"],
        cwd=ROOT,
        env=build_environment(),
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write_end)
    assert (result.returncode, result.stderr) == (command.CLOSED_PIPE_STATUS, "")
