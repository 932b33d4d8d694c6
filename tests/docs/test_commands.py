"""Every command, request and file that the documentation shows is tried, in the order of its page.

A block is run as it stands, or is marked with the reason why it can't be (see `pages.py`); what is
marked is checked otherwise. All pages share one installation with the demo and `world.yaml`, but
for those that take one apart.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class
from django.db import connection

from bonobot.core.cli.command_group import CommandGroup
from tests.docs.installation import Installation, installed
from tests.docs.pages import INLINE, PAGES, Block, blocks
from tests.docs.run_blocks import try_out
from tests.parts import ROOT

WORLD = """
bonobot mcp apply tests/docs/world.yaml --yes --no-discover
TOKEN=$(bonobot tokens create docs --role owner --json | jq --raw-output .token)
export TOKEN
"""
# These take an installation apart: keys, restoring, an organization that is deleted.
APART = {"operate.md"}
ONCE = "tried as a reader does it, with nothing set: once is enough"
# What stands for what in every page.
KNOWN = {
    ".venv/bin/bonobot": "bonobot",
    "$PWD/.venv/bin/python": sys.executable,
    "https://bonobot.example.com": "http://127.0.0.1:8000",
    "/srv/": "$HOME/srv/",
}


def titled(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="session")
def install(
    tmp_path_factory: pytest.TempPathFactory, django_db_setup: None
) -> Iterator[Callable[[str], Installation]]:
    """Return a function that makes an installation with the demo, or gives the one there is."""
    made: dict[str, Installation] = {}
    with ExitStack() as stack:

        def make(name: str) -> Installation:
            if name not in made:
                folder = tmp_path_factory.mktemp("docs")
                model = make("") if name else None
                made[name] = stack.enter_context(installed(folder, like=model))
                (folder / "home" / "srv").mkdir()
                if not name:
                    with made[name].shell() as shell:
                        status, said = shell.run(WORLD.strip() + '\necho "$TOKEN"')
                    assert not status, said
                    made[name].environment["TOKEN"] = said.strip().split("\n")[-1]
            return made[name]

        yield make


def tried(page: Path) -> list[Block]:
    return [block for block in blocks(page) if "not run" not in block.marks]


def test_the_first_start_creates_the_demo_and_shows_its_password_once(
    install: Callable[[str], Installation],
) -> None:
    if connection.vendor != "sqlite":
        pytest.skip(ONCE)
    up = install("").up
    assert up is not None
    for line in (
        r"Creating a demo organization.*",
        r"  user +\S+",
        r"  password +\S{12,}  \(shown once\)",
    ):
        assert len(re.findall(f"^{line}$", up.log(), re.MULTILINE)) == 1, line


@pytest.mark.parametrize("page", [page for page in PAGES if tried(page)], ids=titled)
def test_the_commands_of_a_page_work(page: Path, install: Callable[[str], Installation]) -> None:
    if connection.vendor != "sqlite":
        pytest.skip(ONCE)
    place = install(page.name if page.name in APART else "")
    with place.shell() as shell:
        faults = [fault for block in tried(page) for fault in try_out(block, shell, place, KNOWN)]
    assert not faults, "\n".join(faults)


def test_no_page_has_code_in_an_indented_block() -> None:
    hidden = [
        f"{page.name}:{number}: {line.strip()}"
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1)
        if line.startswith("    bonobot ")
        and not any(
            block.line <= number <= block.line + block.text.count("\n") for block in blocks(page)
        )
    ]
    assert not hidden, "fence it"


@pytest.mark.parametrize("page", PAGES, ids=titled)
def test_commands_in_text_exist(page: Path) -> None:
    faults = [
        f"`{span}`: {fault}"
        for span in INLINE.findall(page.read_text(encoding="utf-8"))
        if (fault := unknown(span.split()[1:]))
    ]
    assert not faults


def unknown(words: list[str]) -> str:
    """Return what of a command there isn't; blank where it is all there."""
    name, *rest = words
    if not name.isalpha() or name.isupper():
        return ""
    if name not in get_commands():
        return f"no command {name}"
    command = load_command_class(get_commands()[name], name)
    parser = command.create_parser("bonobot", name)
    if isinstance(command, CommandGroup) and rest and rest[0].replace("-", "").isalpha():
        verbs = {verb.name: verb for verb in command.verbs}
        for verb in rest[0].split("|"):
            if verb not in verbs:
                return f"{name} has no verb {verb}"
        verbs[rest[0].split("|")[0]].add_arguments(parser)
        parser.add_argument("--org"), parser.add_argument("--json")
    known = set(parser._option_string_actions)
    given = [
        word.strip("[]").partition("=")[0] for word in rest if word.lstrip("[").startswith("--")
    ]
    return ", ".join(option for option in given if option not in known)
