"""`bonobot completion`: the scripts contain every command, verb and option; bash runs for real."""

import argparse
import shlex
import shutil
import subprocess
from io import StringIO

import pytest
from django.core.management import call_command

from bonobot.core.cli.completion import SHELLS, CompletionWord, build_levels, render_script

BASH = shutil.which("bash")


def print_script(shell: str) -> str:
    out = StringIO()
    call_command("completion", shell, stdout=out)
    return out.getvalue()


def complete(*words: str) -> list[str]:
    """Return the completions that bash offers for the last word."""
    typed = " ".join(shlex.quote(word) for word in ("bonobot", *words))
    command = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _bonobot; echo ${{COMPREPLY[@]}}"
    assert BASH is not None
    result = subprocess.run(
        [BASH, "--norc", "-c", f"{print_script('bash')}\n{command}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr == ""
    return result.stdout.split()


@pytest.mark.skipif(BASH is None, reason="bash isn't installed")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("mc",), {"mcp"}),
        (("mcp", "im"), {"import"}),
        (("mcp", "dis"), {"disable", "disable-preset", "disconnect"}),
        (("mcp", "import", "--fr"), {"--from"}),
        (("mcp", "import", "--from", "c"), {"claude-code", "claude-desktop", "cursor"}),
        (("mcp", "--json", "exp"), {"export"}),
        (("mcp", "import", "file.json", "--dry"), {"--dry-run"}),
        (("completion", "z"), {"zsh"}),
        (("agents", "policy", "demo", "--mode", "a"), {"allowlist", "all"}),
    ],
)
def test_bash_completes_commands_verbs_and_options(words, expected):
    assert set(complete(*words)) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_completes_the_verbs_and_no_django_options(shell):
    text = print_script(shell)
    assert "test-tool" in text
    assert "dry-run" in text
    assert "--pythonpath" not in text
    assert "-l pythonpath" not in text


def test_help_texts_cant_break_the_script():
    parser = argparse.ArgumentParser()
    parser.add_argument("--odd", help='it\'s `$(rm -rf /)` "here"', choices=("a b", "$x"))
    levels = build_levels([("one", "don't $HOME", parser)])
    assert levels[0].words == (CompletionWord("one", "don't $HOME"),)
    for line in render_script("fish", "prog", levels).splitlines():
        shlex.split(line, comments=True)
    if BASH is not None:
        text = render_script("bash", "prog", levels)
        subprocess.run([BASH, "-n", "-c", text], check=True)
