"""The tool `find_tools`: full-text search over an agent's tools (BM25).

The order is deterministic. A tool's name weighs more than its description, and that more than its
parameters; words that most tools share weigh little.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from agents.builtin_tools.types import AgentSnapshot, BuiltinTool, BuiltinToolContext
from bonobot.core.i18n.messages import format_message
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.flow_labels import FlowLabel

# Term frequency saturation and length normalization
# (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009).
K1, B = 1.2, 0.75
NAME, ABOUT, PARAMETER, PARAMETER_ABOUT = 4.0, 1.0, 1.0, 0.25
# Characters per description and per tool's parameters, so that no server can dominate results.
READ_AT_MOST = 4_096
_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ENDINGS = (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("es", "e"), ("s", ""))
# Common English words don't distinguish tools.
_STOP = frozenset(
    {
        *("a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "has", "have", "how"),
        *("i", "in", "is", "it", "its", "me", "my", "of", "on", "or", "please", "that", "the"),
        *("this", "to", "was", "we", "what", "which", "with", "you", "your"),
    }
)


@dataclass(frozen=True, slots=True)
class SearchableTool:
    """A tool as it is indexed: its name, description and input schema."""

    name: str
    about: str
    parameters: Mapping[str, Any]


class ToolSearchIndex:
    """A search index of tools."""

    def __init__(self, texts: Iterable[SearchableTool]) -> None:
        """Index the tools: about 10,000 words in 0.1 s."""
        self._weights = {text.name: _calculate_weights(text) for text in texts}
        self._lengths = {name: sum(words.values()) for name, words in self._weights.items()}
        self._average = sum(self._lengths.values()) / max(1, len(self._lengths))
        holders = Counter(word for words in self._weights.values() for word in words)
        count = len(self._weights)
        self._rarity = {
            word: log(1 + (count - having + 0.5) / (having + 0.5))
            for word, having in holders.items()
        }

    def search(self, query: str, most: int) -> list[str]:
        """Return the names of the best matches, best first; ties are sorted by name."""
        asked = [word for word in dict.fromkeys(split_words(query)) if word in self._rarity]
        scores = {name: self._score(name, asked) for name in self._weights}
        found = sorted(
            (name for name, score in scores.items() if score > 0),
            key=lambda name: (-scores[name], name),
        )
        return found[:most]

    def _score(self, name: str, asked: Sequence[str]) -> float:
        words = self._weights[name]
        damping = K1 * (1 - B + B * self._lengths[name] / (self._average or 1))
        return sum(
            self._rarity[word] * words[word] * (K1 + 1) / (words[word] + damping)
            for word in asked
            if word in words
        )


def split_words(text: str) -> list[str]:
    """Return the stemmed, lower-case words of a text, split at camel case."""
    found = (word.lower() for word in _WORD.findall(_HUMP.sub(" ", text)))
    return [_to_stem(word) for word in found if word not in _STOP]


def _to_stem(word: str) -> str:
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: len(word) - len(ending)] + instead
    return word


def _calculate_weights(text: SearchableTool) -> dict[str, float]:
    found: dict[str, float] = {}
    names, abouts = _collect_parameters(text.parameters)
    for words, weight in (
        (text.name, NAME),
        (text.about[:READ_AT_MOST], ABOUT),
        (names[:READ_AT_MOST], PARAMETER),
        (abouts[:READ_AT_MOST], PARAMETER_ABOUT),
    ):
        for word in split_words(words):
            found[word] = found.get(word, 0.0) + weight
    return found


def _collect_parameters(schema: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names and the descriptions of a tool's parameters."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return "", ""
    said = [one.get("description") for one in properties.values() if isinstance(one, Mapping)]
    return " ".join(properties), " ".join(one for one in said if isinstance(one, str))


FIND_TOOLS = "find_tools"
SHOWN, MOST = 8, 20
DESCRIPTION_SHOWN = 160
NOTHING = "No tool fits these words. Try others: what is to be done, and to what."


async def _find(context: BuiltinToolContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the matching tools, one per line, and their names as structured content.

    Only tools that policy allows are searched.
    """
    snapshot = context.snapshot
    index = snapshot.memo.get(FIND_TOOLS)
    if index is None:
        index = snapshot.memo[FIND_TOOLS] = await asyncio.to_thread(_index, snapshot)
    names = index.search(arguments["query"], arguments.get("limit", SHOWN))
    lines = [f"{name}: {_shorten_description(snapshot, name)}" for name in names]
    if lines:
        lines.append("You can call these now.")
    return {
        "content": [{"type": "text", "text": "\n".join(lines) or NOTHING}],
        "structuredContent": {"tools": names},
    }


def _index(snapshot: AgentSnapshot) -> ToolSearchIndex:
    return ToolSearchIndex(
        SearchableTool(tool.name, tool.description, tool.input_schema)
        for tool in snapshot.searchable()
    )


def _shorten_description(snapshot: AgentSnapshot, name: str) -> str:
    return make_visible(" ".join(snapshot.tools[name].description.split()), DESCRIPTION_SHOWN)


FINDING = BuiltinTool(
    name=FIND_TOOLS,
    description=format_message(
        "Find more tools that you can call, by words: say what is to be done, and to what. "
        "You get their names, and have the tools themselves from then on."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "minLength": 1,
                "maxLength": 500,
                "description": "What the tool is to do, in a few words.",
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": MOST},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    run=_find,
    of_many=True,
    labels=(FlowLabel.REPEATABLE,),
)
