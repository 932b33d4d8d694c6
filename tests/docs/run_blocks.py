"""How a block of each kind is tried: as commands of a shell, data as what the product reads."""

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

import yaml

from tests.docs.installation import USUAL, Installation, Shell
from tests.docs.pages import Block, Statement, instead, matches, statements

SHELL = frozenset({"sh", "console"})
SECTIONS = frozenset(
    {"bonobot", "model_endpoints", "servers", "agents", "skills", "workflows", "budgets", "policy"}
)
# What may be run: an unmarked block can't change the machine that it is tried on.
PROGRAMS = frozenset(
    {
        "bonobot",
        ".venv/bin/bonobot",
        "curl",
        "python",
        "sh",
        "make",
        "cat",
        "cd",
        "cp",
        "export",
        "jq",
    }
)
COMMAND = re.compile(r"(?:^|&&|[|;])\s*(?:\w+=\S*\s+)*([\w./-]+)(?!\S*=)")
CLIENTS = frozenset({"mcpServers", "context_servers", "mcp_servers", "tools"})
VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")
# What commands of pages make, so that it isn't there before.
MADE = frozenset({"deploy/secrets.d"})
REQUEST = re.compile(
    r"(?P<method>GET|POST|PUT|PATCH|DELETE) (?P<path>/\S*)\n*(?P<body>.*)", re.DOTALL
)


def told(block: Block) -> Iterator[Statement]:
    """Yield what is run to try a block; data is tried by the command that reads such data."""
    if command := instead(block):
        yield Statement(command, block.line)
    elif block.language in SHELL:
        yield from statements(block)
    elif block.language == "http":
        yield Statement(_asked(block), block.line)
    elif block.language == "python":
        yield Statement(_kept(block, "sample.py") + "\npython sample.py", block.line)
    elif block.language == "json":
        yield from _json(block)
    elif block.language == "yaml":
        yield from _yaml(block)
    elif block.language == "xml":
        ElementTree.fromstring(block.text)  # noqa: S314 - a page of ours
    else:
        raise AssertionError(f"{block}: ```{block.language} is neither run nor marked")


def forbidden(block: Block) -> set[str]:
    """Return the programs of a block that no page may run unmarked."""
    if block.language not in SHELL or block.marks.keys() & {"hidden", "instead", "not run"}:
        return set()
    texts = (
        re.sub(r"'[^']*'|\"[^\"]*\"", "", one.text).replace("$(", "; ") for one in statements(block)
    )
    return {name for text in texts for name in COMMAND.findall(text)} - PROGRAMS


def _kept(block: Block, name: str) -> str:
    return f"cat >{name} <<'END OF THE BLOCK'\n{block.text}\nEND OF THE BLOCK"


def _json(block: Block) -> Iterator[Statement]:
    read = json.loads(block.text)
    if CLIENTS & set(read):
        sets = _values(block.text)
        yield Statement(
            f"{_kept(block, 'sample.json')}\n{sets} bonobot mcp import sample.json --dry-run",
            block.line,
        )
    elif "mode" in read:
        tried = "bonobot audit simulate --agent demo --policy sample.json"
        yield Statement(f"{_kept(block, 'sample.json')}\n{tried}", block.line)


def _yaml(block: Block) -> Iterator[Statement]:
    read = yaml.safe_load(block.text)
    if CLIENTS & set(read):
        tried = f"{_values(block.text)} bonobot mcp import sample.yaml --dry-run"
        yield Statement(f"{_kept(block, 'sample.yaml')}\n{tried}", block.line)
    elif set(read) <= SECTIONS:
        text = block.text if "bonobot" in read else f"bonobot: 1\n{block.text}"
        whole = Block(block.page, block.line, "yaml", text)
        tried = f"{_values(text)} bonobot mcp apply sample.yaml --dry-run --no-discover"
        yield Statement(f"{_kept(whole, 'sample.yaml')}\n{tried}", block.line)
    elif "steps" in read:
        tried = "bonobot workflows add sample --file sample.yaml && bonobot workflows remove sample"
        yield Statement(f"{_kept(block, 'sample.yaml')}\n{tried}", block.line)


def _values(text: str) -> str:
    """Return settings of the variables that a text names, for the shell."""
    return " ".join(f"{name}=given" for name in sorted(set(VARIABLE.findall(text))))


def _asked(block: Block) -> str:
    """Return a request as a command; an answer of 400 and more fails it."""
    found = REQUEST.fullmatch(block.text)
    assert found, f"{block}: an http block is `METHOD /path`, a blank line, and the body"
    body = f"--json {shlex.quote(found['body'])}" if found["body"].strip() else ""
    authorization = '--header "Authorization: Bearer $TOKEN"'
    method = f"--request {found['method']}"
    return f"curl -sS --fail-with-body {method} {authorization} {body} '{USUAL}{found['path']}'"


def try_out(block: Block, shell: Shell, place: Installation, known: Mapping[str, str]) -> list[str]:
    """Run a block and return what isn't as the page says."""
    faults = []
    every = list(told(block))
    assert not forbidden(block), f"{block}: {forbidden(block)} may not be run: mark it"
    for statement in every:
        last = statement is every[-1]
        expected = int(block.marks.get("exits", 0)) if last else 0
        status, output = shell.run(_placed(statement.text, block, place, known))
        output = output.replace(place.url, USUAL)
        at = f"{block.page.name}:{statement.line}: `{statement.text}`"
        if status != expected:
            faults.append(f"{at} ended with {status}:\n{output}")
        elif statement.shown is not None and not matches(statement.shown, output):
            faults.append(f"{at} shows something else:\n{output}")
    return faults


def _placed(text: str, block: Block, place: Installation, known: Mapping[str, str]) -> str:
    for name, other in (*block.stands_for, *known.items(), (USUAL, place.url)):
        text = text.replace(name, other)
    return text


def names_in(block: Block, root: Path) -> Iterator[str]:
    """Yield what a block that isn't run names and isn't there: files, modules, targets of make."""
    targets = re.findall(r"^([a-z]+):", (root / "Makefile").read_text(encoding="utf-8"), re.M)
    tops = {"benchmarks", "deploy", "docs", "tests"}
    for word in re.findall(r"[\w./-]+", block.text):
        if word.split("/")[0] in tops and "/" in word and not word.startswith("."):
            yield from () if word in MADE or [*root.glob(word.rstrip("/") + "*")] else (word,)
    for module in re.findall(r"-m ((?:benchmarks|tests|docs)\.[\w.]+)", block.text):
        if not (root / f"{module.replace('.', '/')}.py").is_file():
            yield module
    yield from (name for name in re.findall(r"\bmake ([a-z]+)", block.text) if name not in targets)
    if block.language == "python":
        ast.parse(block.text)
