"""Pages of the documentation as testable blocks of code, in order, with marks.

A mark is a comment before a block, so readers of the page don't see it:

    <!-- not run: REASON -->             it can't be run here; what it names is checked
    <!-- instead: COMMAND (REASON) -->   this is run in its place
    <!-- where: TEXT is OTHER -->        in what is run, OTHER (text of a shell) stands for TEXT
    <!-- exits 1 -->                     its last command ends with this status
    <!-- hidden                          a block of its own that only the tests run
    COMMANDS
    -->
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.parts import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n`]*$")
COMMENT = re.compile(r"^ *<!--(?P<text>.*?)-->\s*$", re.DOTALL)
KINDS = re.compile(r"(?P<kind>not run|instead|where|exits|hidden)\b:?\s*(?P<text>.*)", re.DOTALL)
INSTEAD = re.compile(r"(?P<command>.+) \((?P<reason>[^()]+)\)$", re.DOTALL)
INLINE = re.compile(r"(?<!`)`(bonobot [^`]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, or a hidden one; `line` is the first one of its text."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)
    stands_for: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Statement:
    """A command and its documented output (None: no output is documented)."""

    text: str
    line: int
    shown: str | None = None


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page to test; raise AssertionError if a mark or block is invalid."""
    lines = page.read_text(encoding="utf-8").split("\n")
    page_blocks: list[Block] = []
    marks: dict[str, str] = {}
    stands_for: list[tuple[str, str]] = []
    at = 0
    while at < len(lines):
        start = at
        if fence := FENCE.match(lines[at]):
            at = _end(lines, at, page)
            text = "\n".join(line.removeprefix(fence["indent"]) for line in lines[start + 1 : at])
            page_blocks.append(
                Block(page, start + 2, fence["language"], text, marks, tuple(stands_for))
            )
            marks, stands_for = {}, []
        elif lines[at].lstrip().startswith("<!--"):
            while "-->" not in lines[at]:
                at += 1
            kind, text = _mark("\n".join(lines[start : at + 1]), f"{page}:{start + 1}")
            if kind == "hidden":
                page_blocks.append(Block(page, start + 2, "sh", text, {kind: ""}))
            elif kind == "where":
                name, _, other = text.partition(" is ")
                stands_for.append((name, other))
            else:
                marks[kind] = text
        elif lines[at].strip():
            assert not marks, f"{page}:{at + 1}: a mark belongs directly before a block"
            assert not stands_for, f"{page}:{at + 1}: a mark belongs directly before a block"
        at += 1
    return page_blocks


def _end(lines: list[str], start: int, page: Path) -> int:
    for at in range(start + 1, len(lines)):
        if lines[at].strip() == "```":
            return at
    raise AssertionError(f"{page}:{start + 1}: this block has no end")


def _mark(comment: str, position: str) -> tuple[str, str]:
    inside = COMMENT.match(comment)
    match = inside and KINDS.match(inside["text"].strip())
    assert match, f"{position}: this comment is no mark that tests know"
    return match["kind"], match["text"].strip()


def instead(block: Block) -> str:
    """Return the command that is run instead of a block, or ""."""
    mark = block.marks.get("instead", "")
    match = INSTEAD.match(mark)
    assert not mark or match, f"{block}: say in brackets why `{mark}` is run instead"
    return match["command"] if match else ""


def statements(block: Block) -> Iterator[Statement]:
    """Yield the commands of a block, each as many lines as a shell needs."""
    if block.language == "console":
        yield from _iterate_console_statements(block)
        return
    lines = block.text.split("\n")
    at = 0
    while at < len(lines):
        end = at + 1
        while end < len(lines) and not _is_complete("\n".join(lines[at:end])):
            end += 1
        text = "\n".join(lines[at:end])
        if text.strip() and not text.lstrip().startswith("#"):
            yield Statement(text, block.line + at)
        at = end


def _iterate_console_statements(block: Block) -> Iterator[Statement]:
    """Yield the commands of a console session: after `$ `, continued after `> `, then their
    output."""
    for part in re.split(r"^(?=\$ )", block.text, flags=re.MULTILINE):
        if not part.strip():
            continue
        assert part.startswith("$ "), f"{block}: a conversation begins with `$ `"
        lines = part.rstrip("\n").split("\n")
        command_lines = 1 + next(
            (at for at, line in enumerate(lines[1:]) if line[:2] != "> "), len(lines)
        )
        text = "\n".join(line[2:] for line in lines[:command_lines])
        offset = block.text[: block.text.index(part)].count("\n")
        yield Statement(text, block.line + offset, "\n".join(lines[command_lines:]))


def _is_complete(text: str) -> bool:
    """Return whether a text is complete for a shell."""
    if text.endswith("\\"):
        return False
    result = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    return not result.stderr


def matches(shown: str, output: str) -> bool:
    """Return whether an output matches a documented one, where `…` stands for anything."""
    lines = [
        r"(?:[^\n]*\n)*?" if line.strip() == "…" else _pattern(line) + r"[ \t]*\n"
        for line in shown.strip("\n").split("\n")
    ]
    return bool(re.fullmatch("".join(lines), output.strip("\n") + "\n"))


def _pattern(line: str) -> str:
    return "[^\n]*?".join(re.escape(part) for part in line.rstrip().split("…"))
