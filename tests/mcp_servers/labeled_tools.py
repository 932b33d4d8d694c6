"""Tools of real servers, labeled by hand: see `labeled_tools/README.md`."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "labeled_tools"


@dataclass(frozen=True)
class LabeledTool:
    """A tool as its server declares it, and its labels."""

    server: str
    half: str
    declaration: Mapping[str, Any]
    labels: frozenset[str]

    @property
    def says_it_only_reads(self) -> bool:
        """Tell whether the server declares `readOnlyHint`."""
        return self.declaration.get("annotations", {}).get("readOnlyHint") is True


@dataclass
class Counts:
    """Counts of correct, wrong and missing suggestions of a label."""

    right: int = 0
    extra: int = 0
    missed: int = 0

    @property
    def precision(self) -> float:
        """Return the share of suggestions that are correct."""
        return self.right / max(1, self.right + self.extra)

    @property
    def recall(self) -> float:
        """Return the share of expected labels that were suggested."""
        return self.right / max(1, self.right + self.missed)

    def count(self, expected: bool, suggested: bool) -> None:
        """Count one tool."""
        self.right += expected and suggested
        self.extra += suggested and not expected
        self.missed += expected and not suggested


def sources() -> dict[str, dict[str, str]]:
    """Return each server's package, version, license and half."""
    servers: dict[str, dict[str, str]] = json.loads((FOLDER / "sources.json").read_text())
    return servers


def labeled_tools() -> Iterator[LabeledTool]:
    """Return all tools, server by server."""
    for server, source in sources().items():
        for line in (FOLDER / f"{server}.jsonl").read_text().splitlines():
            declaration = json.loads(line)
            labels = frozenset(declaration.pop("labels"))
            yield LabeledTool(server, source["half"], declaration, labels)
