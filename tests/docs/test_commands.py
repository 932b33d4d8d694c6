"""Every command, request and file of the documentation is tested, in the order of its page.

A block is run as it is, or marked with the reason why it can't be (see `pages.py`); marked blocks
are checked in other ways. All pages share one installation with the demo and `world.yaml`, except
for destructive ones.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from bonobot.core.cli.command_group import CommandGroup, add_arguments
from tests.docs.installation import Installation, create_installation
from tests.docs.pages import INLINE, PAGES, Block, blocks
from tests.docs.run_blocks import check_block
from tests.parts import ROOT

WORLD = """
bonobot mcp apply tests/docs/world.yaml --yes --no-discover
TOKEN=$(bonobot tokens create docs --role owner --json | jq --raw-output .token)
export TOKEN
"""
# Destructive pages: key rotation, restoring, deleting an organization.
SEPARATE_PAGES = {"operate.md"}
# Replacements in every page.
REPLACEMENTS = {
    ".venv/bin/bonobot": "bonobot",
    "$PWD/.venv/bin/python": sys.executable,
    "https://bonobot.example.com": "http://127.0.0.1:8000",
    "/srv/": "$HOME/srv/",
}


def get_title(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def install(
    tmp_path_factory: pytest.TempPathFactory, django_db_setup: None
) -> Iterator[Callable[[str], Installation]]:
    """Return a function that returns an installation with the demo, created on first use."""
    installations: dict[str, Installation] = {}
    with ExitStack() as stack:

        def get_installation(name: str) -> Installation:
            if name not in installations:
                folder = tmp_path_factory.mktemp("docs")
                model = get_installation("") if name else None
                installations[name] = stack.enter_context(create_installation(folder, like=model))
                (folder / "home" / "srv").mkdir()
                if not name:
                    with installations[name].shell() as shell:
                        status, output = shell.run(WORLD.strip() + '\necho "$TOKEN"')
                    assert not status, output
                    installations[name].environment["TOKEN"] = output.strip().split("\n")[-1]
            return installations[name]

        yield get_installation


def list_tested_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if "not run" not in block.marks]


@pytest.mark.whole
def test_the_first_start_creates_the_demo_and_shows_its_password_once(
    install: Callable[[str], Installation],
) -> None:
    up = install("").up
    assert up is not None
    for line in (
        r"Creating a demo organization.*",
        r"  user +\S+",
        r"  password +\S{12,}  \(shown once\)",
    ):
        assert len(re.findall(f"^{line}$", up.log(), re.MULTILINE)) == 1, line


@pytest.mark.whole
@pytest.mark.parametrize(
    "page", [page for page in PAGES if list_tested_blocks(page)], ids=get_title
)
def test_the_commands_of_a_page_work(page: Path, install: Callable[[str], Installation]) -> None:
    installation = install(page.name if page.name in SEPARATE_PAGES else "")
    with installation.shell() as shell:
        faults = [
            fault
            for block in list_tested_blocks(page)
            for fault in check_block(block, shell, installation, REPLACEMENTS)
        ]
    assert not faults, "\n".join(faults)


def test_no_page_has_code_in_an_indented_block() -> None:
    indented = [
        f"{page.name}:{number}: {line.strip()}"
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1)
        if line.startswith("    bonobot ")
        and not any(
            block.line <= number <= block.line + block.text.count("\n") for block in blocks(page)
        )
    ]
    assert not indented, "fence it"


def test_commands_in_text_exist() -> None:
    assert [
        f"{get_title(page)}: `{span}`: {fault}"
        for page in PAGES
        for span in INLINE.findall(page.read_text(encoding="utf-8"))
        if (fault := find_unknown_parts(span.split()[1:]))
    ] == []


def find_unknown_parts(words: list[str]) -> str:
    """Return the unknown parts of a command, or ""."""
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
        add_arguments(parser, verbs[rest[0].split("|")[0]].arguments)
        parser.add_argument("--org"), parser.add_argument("--json")
    options = set(parser._option_string_actions)
    used_options = [
        word.strip("[]").partition("=")[0] for word in rest if word.lstrip("[").startswith("--")
    ]
    return ", ".join(option for option in used_options if option not in options)
