"""Old names of commands and options."""

import pytest

from bonobot import __main__ as command
from bonobot.management.command_groups import (
    COMMAND_GROUPS,
    RENAMED_COMMANDS,
    RENAMED_OPTIONS,
    replace_renamed,
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["notices", "list", "--json"], ["notifications", "list", "--json"]),
        (["agents", "held", "demo"], ["agents", "flow-labels", "demo"]),
        (
            ["approvals", "deny", "1", "--word=No, thanks"],
            ["approvals", "deny", "1", "--message=No, thanks"],
        ),
        (["skills", "set", "s", "--off"], ["skills", "set", "s", "--no-enabled"]),
    ],
)
def test_an_old_name_is_replaced_and_the_note_has_the_new_one(
    old: list[str], new: list[str]
) -> None:
    words, [note] = replace_renamed(old)
    assert words == new
    assert "is now `" in note


def test_a_command_line_without_old_names_stays_as_it_is() -> None:
    command_line = ["agents", "run", "held", "--on", "word"]
    assert replace_renamed(command_line) == (command_line, [])


@pytest.mark.parametrize("new", sorted({*RENAMED_COMMANDS.values(), *RENAMED_OPTIONS}))
def test_each_new_name_has_a_command_with_the_new_options(
    new: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert new[0] in COMMAND_GROUPS
    with pytest.raises(SystemExit) as raised:
        command.main([*new, "--help"])
    assert raised.value.code == 0
    output = capsys.readouterr().out
    for option in RENAMED_OPTIONS.get(new, {}).values():
        assert option in output


def test_the_command_line_runs_an_old_name_and_prints_the_new_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        command.main(["questions", "list", "--help"])
    captured = capsys.readouterr()
    assert "List the latest" in captured.out
    assert captured.err == (
        "`questions` is now `elicitations`. The next release removes the old name.\n"
    )
