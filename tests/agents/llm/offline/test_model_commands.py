"""Commands typed in messages: which run, and the errors of the others."""

import pytest

from agents.llm.offline.model import Command, CommandSyntaxError, parse_commands

NAMES = ["mcp_time_get_current_time", "mcp_git_git_log", "mcp_a_echo", "mcp_b_echo"]
TIME, LOG = NAMES[:2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'/{TIME} {{"a": 1}}', [Command(TIME, {"a": 1}, "", True)]),
        (f"/{TIME}{{}}", [Command(TIME, {}, "", True)]),
        ('  /get_current_time {"a": 1}  ', [Command(TIME, {"a": 1}, "", True)]),
        ("/git-log {}", [Command(LOG, {}, "", True)]),
        ("/echo {}", [Command("echo", {}, "", False)]),
        ('/unknown {"x": null}', [Command("unknown", {"x": None}, "", False)]),
        (f"/{TIME} in Tokyo", [Command(TIME, None, "in Tokyo", True)]),
        (f"/{TIME}", [Command(TIME, None, "", True)]),
        ("/help", [Command("help", None, "", False)]),
        ("/tools time", [Command("tools", None, "time", False)]),
        (
            f'Please run\n/{TIME} {{\n  "a": [1,\n 2]\n}}\nand\n/git_log {{}}',
            [Command(TIME, {"a": [1, 2]}, "", True), Command(LOG, {}, "", True)],
        ),
        (f'/{TIME} {{"a": "/git_log {{}}"}}', [Command(TIME, {"a": "/git_log {}"}, "", True)]),
        ("/etc/hosts", []),
        ("look at\n/tmp\nplease", []),
        (f"what does /{TIME} do?", []),
        ("", []),
    ],
)
def test_commands_are_parsed(text: str, expected: list[Command]) -> None:
    assert parse_commands(text, NAMES) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'/{TIME} {{"a": }}', "column 34"),
        (f"/{TIME} {{bad", "not JSON"),
        (f'\n/{TIME} {{"a": NaN}}', "NaN"),
        (f"/{TIME} {{}} and more", "after the JSON"),
        (f'/{TIME} {{"a":' + "[" * 9_000, "not JSON"),
        ("/get_curent_time", f"Did you mean `/{TIME}`?"),
        ("/nope", "no tool named `nope`"),
        ("/a {}\n" * 51, "more than 50"),
    ],
)
def test_invalid_commands_report_the_error(text: str, expected: str) -> None:
    with pytest.raises(CommandSyntaxError) as caught:
        parse_commands(text, NAMES)
    assert expected in str(caught.value)
