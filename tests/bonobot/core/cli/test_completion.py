"""`bonobot completion`: the scripts hold every command, verb and option; bash is really asked."""

import argparse
import shlex
import shutil
import subprocess
from io import StringIO

import pytest
from django.core.management import call_command

from bonobot.core.cli.completion import SHELLS, CompletionWord, build_levels, render_script

BASH = shutil.which("bash")


def printed(shell: str) -> str:
    out = StringIO()
    call_command("completion", shell, stdout=out)
    return out.getvalue()


def completed(*words: str) -> list[str]:
    """Return what bash offers in the place of the last word."""
    typed = " ".join(shlex.quote(word) for word in ("bonobot", *words))
    asked = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _bonobot; echo ${{COMPREPLY[@]}}"
    assert BASH is not None
    ran = subprocess.run(
        [BASH, "--norc", "-c", f"{printed('bash')}\n{asked}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.mark.skipif(BASH is None, reason="bash isn't here")
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
    assert set(completed(*words)) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_completes_the_verbs_and_no_django_options(shell):
    text = printed(shell)
    assert "test-tool" in text
    assert "dry-run" in text
    assert "--pythonpath" not in text
    assert "-l pythonpath" not in text


def test_help_texts_cant_break_the_script():
    parser = argparse.ArgumentParser()
    parser.add_argument("--odd", help='it\'s `$(rm -rf /)` "here"', choices=("a b", "$x"))
    found = build_levels([("one", "don't $HOME", parser)])
    assert found[0].words == (CompletionWord("one", "don't $HOME"),)
    for line in render_script("fish", "prog", found).splitlines():
        shlex.split(line, comments=True)
    if BASH is not None:
        text = render_script("bash", "prog", found)
        subprocess.run([BASH, "-n", "-c", text], check=True)
