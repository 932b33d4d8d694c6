"""Errors in pages that the tests of pages detect."""

from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks, instead, matches, statements
from tests.docs.run_blocks import forbidden, iterate_statements


def page(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


def block(language: str, text: str, **marks: str) -> Block:
    return Block(Path("page.md"), 1, language, text, marks)


def test_a_block_that_cant_be_run_must_be_marked() -> None:
    with pytest.raises(AssertionError, match="neither run nor marked"):
        list(iterate_statements(block("text", "whatever")))


def test_a_block_that_changes_the_host_must_be_marked() -> None:
    assert forbidden(block("sh", "useradd bonobot")) == {"useradd"}
    assert forbidden(block("sh", "KEY=1 bonobot mcp list | tee 'a; b'")) == {"tee"}
    assert not forbidden(block("sh", "bonobot mcp list --json | jq ."))


def test_marks_apply_to_the_next_block(tmp_path: Path) -> None:
    text = "<!-- exits 1 -->\n<!-- where: A is B -->\n```sh\na\n```\n\n<!-- hidden\nb\n-->\n"
    first, second = blocks(page(tmp_path, text))
    assert (first.marks, first.stands_for) == ({"exits": "1"}, (("A", "B"),))
    assert (second.text, second.marks) == ("b", {"hidden": ""}) or second.text.strip() == "b"


@pytest.mark.parametrize("text", ["<!-- exits 1 -->\nwords\n", "<!-- a note -->\n"])
def test_a_mark_without_a_block_or_meaning_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(AssertionError, match="mark"):
        blocks(page(tmp_path, text))


def test_a_replaced_command_has_a_reason() -> None:
    assert instead(block("sh", "make run", instead="make -n run (it doesn't end)")) == "make -n run"
    with pytest.raises(AssertionError, match="brackets"):
        instead(block("sh", "make run", instead="make -n run"))


def test_multi_line_commands_are_joined() -> None:
    text = "a \\\n  b\n# a comment\nc '\nd'\ncat <<E\nx\nE\n"
    assert [statement.text for statement in statements(block("sh", text))] == [
        "a \\\n  b",
        "c '\nd'",
        "cat <<E\nx\nE",
    ]


def test_a_console_block_has_commands_and_their_output() -> None:
    text = "$ one \\\n>   two\nfirst\n…\nlast\n$ three"
    commands = list(statements(block("console", text)))
    assert [(statement.text, statement.shown) for statement in commands] == [
        ("one \\\n  two", "first\n…\nlast"),
        ("three", ""),
    ]


@pytest.mark.parametrize(
    ("shown", "output", "same"),
    [
        ("a\nb", "a\nb\n", True),
        ("a\nb", "a\nc\n", False),
        ("a … c", "a 123 c", True),
        ("a\n…\nz", "a\n1\n2\nz\n", True),
        ("a\n…\nz", "a\nz\n", True),
        ("a\n…\nz", "b\nz\n", False),
    ],
)
def test_dots_match_any_output(shown: str, output: str, same: bool) -> None:
    assert matches(shown, output) == same
