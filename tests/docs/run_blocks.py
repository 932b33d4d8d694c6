"""How to test each kind of block: shell commands are run, data is read by the product."""

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

import yaml

from tests.docs.installation import DEFAULT_URL, Installation, Shell
from tests.docs.pages import Block, Statement, instead, matches, statements

SHELL = frozenset({"sh", "console"})
SECTIONS = frozenset(
    {"bonobot", "model_endpoints", "servers", "agents", "skills", "workflows", "budgets", "policy"}
)
# Allowed programs: an unmarked block can't change the machine that runs the tests.
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
# Created by commands of pages.
CREATED_PATHS = frozenset({"deploy/secrets.d"})
REQUEST = re.compile(
    r"(?P<method>GET|POST|PUT|PATCH|DELETE) (?P<path>/\S*)\n*(?P<body>.*)", re.DOTALL
)


def iterate_statements(block: Block) -> Iterator[Statement]:
    """Yield the commands that test a block; data is tested with a command that reads it."""
    if command := instead(block):
        yield Statement(command, block.line)
    elif block.language in SHELL:
        yield from statements(block)
    elif block.language == "http":
        yield Statement(_build_curl_command(block), block.line)
    elif block.language == "python":
        yield Statement(_build_file_command(block, "sample.py") + "\npython sample.py", block.line)
    elif block.language == "json":
        yield from _json(block)
    elif block.language == "yaml":
        yield from _yaml(block)
    elif block.language == "xml":
        ElementTree.fromstring(block.text)  # noqa: S314 - our own page
    else:
        raise AssertionError(f"{block}: ```{block.language} is neither run nor marked")


def forbidden(block: Block) -> set[str]:
    """Return the programs of a block that aren't allowed without a mark."""
    if block.language not in SHELL or block.marks.keys() & {"hidden", "instead", "not run"}:
        return set()
    texts = (
        re.sub(r"'[^']*'|\"[^\"]*\"", "", statement.text).replace("$(", "; ")
        for statement in statements(block)
    )
    return {name for text in texts for name in COMMAND.findall(text)} - PROGRAMS


def _build_file_command(block: Block, name: str) -> str:
    return f"cat >{name} <<'END OF THE BLOCK'\n{block.text}\nEND OF THE BLOCK"


def _json(block: Block) -> Iterator[Statement]:
    data = json.loads(block.text)
    if CLIENTS & set(data):
        assignments = _values(block.text)
        command = f"{assignments} bonobot mcp import sample.json --dry-run"
        yield Statement(f"{_build_file_command(block, 'sample.json')}\n{command}", block.line)
    elif "mode" in data:
        command = "bonobot audit simulate --agent demo --policy sample.json"
        yield Statement(f"{_build_file_command(block, 'sample.json')}\n{command}", block.line)


def _yaml(block: Block) -> Iterator[Statement]:
    data = yaml.safe_load(block.text)
    if CLIENTS & set(data):
        command = f"{_values(block.text)} bonobot mcp import sample.yaml --dry-run"
        yield Statement(f"{_build_file_command(block, 'sample.yaml')}\n{command}", block.line)
    elif set(data) <= SECTIONS:
        text = block.text if "bonobot" in data else f"bonobot: 1\n{block.text}"
        complete_block = Block(block.page, block.line, "yaml", text)
        command = f"{_values(text)} bonobot mcp apply sample.yaml --dry-run --no-discover"
        yield Statement(
            f"{_build_file_command(complete_block, 'sample.yaml')}\n{command}", block.line
        )
    elif "steps" in data:
        command = (
            "bonobot workflows add sample --file sample.yaml && bonobot workflows remove sample"
        )
        yield Statement(f"{_build_file_command(block, 'sample.yaml')}\n{command}", block.line)


def _values(text: str) -> str:
    """Return shell assignments for the variables in a text."""
    return " ".join(f"{name}=given" for name in sorted(set(VARIABLE.findall(text))))


def _build_curl_command(block: Block) -> str:
    """Return a request as a curl command, which fails for statuses from 400."""
    match = REQUEST.fullmatch(block.text)
    assert match, f"{block}: an http block is `METHOD /path`, a blank line, and the body"
    body = f"--json {shlex.quote(match['body'])}" if match["body"].strip() else ""
    authorization = '--header "Authorization: Bearer $TOKEN"'
    method = f"--request {match['method']}"
    return (
        f"curl -sS --fail-with-body {method} {authorization} {body} '{DEFAULT_URL}{match['path']}'"
    )


def check_block(
    block: Block, shell: Shell, installation: Installation, replacements: Mapping[str, str]
) -> list[str]:
    """Run a block and return the differences from the page."""
    faults = []
    statements_to_run = list(iterate_statements(block))
    assert not forbidden(block), f"{block}: {forbidden(block)} may not be run: mark it"
    for statement in statements_to_run:
        last = statement is statements_to_run[-1]
        expected = int(block.marks.get("exits", 0)) if last else 0
        status, output = shell.run(_substitute(statement.text, block, installation, replacements))
        output = output.replace(installation.url, DEFAULT_URL)
        at = f"{block.page.name}:{statement.line}: `{statement.text}`"
        if status != expected:
            faults.append(f"{at} ended with {status}:\n{output}")
        elif statement.shown is not None and not matches(statement.shown, output):
            faults.append(f"{at} shows something else:\n{output}")
    return faults


def _substitute(
    text: str, block: Block, installation: Installation, replacements: Mapping[str, str]
) -> str:
    for name, other in (*block.stands_for, *replacements.items(), (DEFAULT_URL, installation.url)):
        text = text.replace(name, other)
    return text


def names_in(block: Block, root: Path) -> Iterator[str]:
    """Yield missing files, modules and make targets that a block, which isn't run, refers to."""
    targets = re.findall(r"^([a-z]+):", (root / "Makefile").read_text(encoding="utf-8"), re.M)
    tops = {"benchmarks", "deploy", "docs", "tests"}
    for word in re.findall(r"[\w./-]+", block.text):
        if word.split("/")[0] in tops and "/" in word and not word.startswith("."):
            yield from (
                () if word in CREATED_PATHS or [*root.glob(word.rstrip("/") + "*")] else (word,)
            )
    for module in re.findall(r"-m ((?:benchmarks|tests|docs)\.[\w.]+)", block.text):
        if not (root / f"{module.replace('.', '/')}.py").is_file():
            yield module
    yield from (name for name in re.findall(r"\bmake ([a-z]+)", block.text) if name not in targets)
    if block.language == "python":
        ast.parse(block.text)
