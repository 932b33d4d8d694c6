"""Read a pasted or uploaded text into entries: what a client wrote, server by server."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from bonobot.lib.problems import Problem
from bonobot.lib.sayings import say
from mcp_servers.naming import check_name
from mcp_servers.notices import Notice
from mcp_servers.portability.collecting import Labels
from mcp_servers.portability.entries import Entry
from mcp_servers.portability.reader import Node, read, tolerated
from mcp_servers.portability.servers import read_server
from mcp_servers.portability.shapes import survey
from mcp_servers.portability.yaml_reader import is_yaml, read_yaml


def parse(
    text: str,
    *,
    values: Mapping[str, str] | None = None,
    taken_over: Collection[str] = (),
) -> tuple[Entry, ...]:
    """Return the servers that `text` describes, each with its problems; nothing is added.

    `values` fill `${NAME}` (a person's answers, or the CLI's environment); `taken_over` are members
    that the caller itself understands, so that nothing is said of leaving them out. Raises
    `Invalid` about the whole text: `broken_json`, `broken_yaml`, `unsupported_yaml`, `too_large`,
    `too_deep`, `nothing_to_import`, `not_a_configuration`, `too_many_servers`.
    """
    reading = read_yaml(text) if is_yaml(text) else read(text)
    document = survey(reading.root)
    notices = [Notice("tolerated", words) for words in tolerated(reading)]
    if left_out := [name for name in document.left_out if name not in taken_over]:
        listed = ", ".join(f"`{name}`" for name in left_out[:20])
        notices.append(
            Notice("left_out", say("Beside the servers, not taken over: {listed}.", listed=listed))
        )
    labels = _labels(document.inputs)
    entries = [read_server(found, values or {}, labels, taken_over) for found in document.servers]
    return tuple(
        replace(
            entry,
            notices=(*notices, *entry.notices),
            problems=(*_name_problems(entry, entries[:index]), *entry.problems),
        )
        for index, entry in enumerate(entries)
    )


def _name_problems(entry: Entry, before: list[Entry]) -> tuple[Problem, ...]:
    """Return what is wrong with a name by itself or beside those that came before it."""
    same = next((other for other in before if other.name == entry.name and entry.name), None)
    try:
        check_name(entry.name, [other.name for other in before])
    except Problem as problem:
        if same is not None:
            problem.code = "duplicate_name"
            problem.detail = f"`{entry.name}` is on line {same.line} already."
        problem.extra["line"] = entry.line
        return (problem,)
    return ()


def _labels(inputs: Node | None) -> Labels:
    """Return what VS Code's `inputs` call their ids, and which of them are passwords."""
    labels: dict[str, tuple[str, bool]] = {}
    for item in inputs.items if inputs else ():
        described = item.plain()
        if isinstance(described, dict) and isinstance(described.get("id"), str):
            label = described.get("description")
            name = label if isinstance(label, str) and label else described["id"]
            labels[described["id"]] = (name, described.get("password") is True)
    return labels
