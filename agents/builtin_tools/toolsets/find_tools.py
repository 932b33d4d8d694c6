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
NAME_WEIGHT, DESCRIPTION_WEIGHT, PARAMETER_WEIGHT, PARAMETER_DESCRIPTION_WEIGHT = (
    4.0,
    1.0,
    1.0,
    0.25,
)
# Characters per description and per tool's parameters, so that no server can dominate results.
MAX_INDEXED_LENGTH = 4_096
_WORD = re.compile(r"[^\W_]+")
_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ENDINGS = (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("es", "e"), ("s", ""))
# Common English words don't distinguish tools.
_STOP_WORDS = frozenset(
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
    description: str
    parameters: Mapping[str, Any]


class ToolSearchIndex:
    """A search index of tools."""

    def __init__(self, tools: Iterable[SearchableTool]) -> None:
        """Index the tools: about 10,000 words in 0.1 s."""
        self._weights = {tool.name: _compute_weights(tool) for tool in tools}
        self._lengths = {name: sum(words.values()) for name, words in self._weights.items()}
        self._average_length = sum(self._lengths.values()) / max(1, len(self._lengths))
        tool_counts = Counter(word for words in self._weights.values() for word in words)
        count = len(self._weights)
        self._rarity = {
            word: log(1 + (count - tool_count + 0.5) / (tool_count + 0.5))
            for word, tool_count in tool_counts.items()
        }

    def search(self, query: str, limit: int) -> list[str]:
        """Return the names of the best matches, best first; ties are sorted by name."""
        query_words = [word for word in dict.fromkeys(split_words(query)) if word in self._rarity]
        scores = {name: self._compute_score(name, query_words) for name in self._weights}
        matches = sorted(
            (name for name, score in scores.items() if score > 0),
            key=lambda name: (-scores[name], name),
        )
        return matches[:limit]

    def _compute_score(self, name: str, query_words: Sequence[str]) -> float:
        words = self._weights[name]
        damping = K1 * (1 - B + B * self._lengths[name] / (self._average_length or 1))
        return sum(
            self._rarity[word] * words[word] * (K1 + 1) / (words[word] + damping)
            for word in query_words
            if word in words
        )


def split_words(text: str) -> list[str]:
    """Return the stemmed, lower-case words of a text, split at camel case."""
    words = (word.lower() for word in _WORD.findall(_CAMEL_CASE_BOUNDARY.sub(" ", text)))
    return [_stem_word(word) for word in words if word not in _STOP_WORDS]


def _stem_word(word: str) -> str:
    for ending, replacement in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: len(word) - len(ending)] + replacement
    return word


def _compute_weights(tool: SearchableTool) -> dict[str, float]:
    weights: dict[str, float] = {}
    names, descriptions = _collect_parameter_texts(tool.parameters)
    for words, weight in (
        (tool.name, NAME_WEIGHT),
        (tool.description[:MAX_INDEXED_LENGTH], DESCRIPTION_WEIGHT),
        (names[:MAX_INDEXED_LENGTH], PARAMETER_WEIGHT),
        (descriptions[:MAX_INDEXED_LENGTH], PARAMETER_DESCRIPTION_WEIGHT),
    ):
        for word in split_words(words):
            weights[word] = weights.get(word, 0.0) + weight
    return weights


def _collect_parameter_texts(schema: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names and the descriptions of a tool's parameters."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return "", ""
    descriptions = [
        property_schema.get("description")
        for property_schema in properties.values()
        if isinstance(property_schema, Mapping)
    ]
    return " ".join(properties), " ".join(
        property_schema for property_schema in descriptions if isinstance(property_schema, str)
    )


FIND_TOOLS = "find_tools"
DEFAULT_LIMIT, MAX_LIMIT = 8, 20
MAX_DESCRIPTION_LENGTH = 160
NO_MATCH_TEXT = "No tool fits these words. Try others: what is to be done, and to what."


async def _handle_find_tools(
    context: BuiltinToolContext, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Return the matching tools, one per line, and their names as structured content.

    Only tools that policy allows are searched.
    """
    snapshot = context.snapshot
    index = snapshot.memo.get(FIND_TOOLS)
    if index is None:
        index = snapshot.memo[FIND_TOOLS] = await asyncio.to_thread(_build_index, snapshot)
    names = index.search(arguments["query"], arguments.get("limit", DEFAULT_LIMIT))
    lines = [f"{name}: {_shorten_description(snapshot, name)}" for name in names]
    if lines:
        lines.append("You can call these now.")
    return {
        "content": [{"type": "text", "text": "\n".join(lines) or NO_MATCH_TEXT}],
        "structuredContent": {"tools": names},
    }


def _build_index(snapshot: AgentSnapshot) -> ToolSearchIndex:
    return ToolSearchIndex(
        SearchableTool(tool.name, tool.description, tool.input_schema)
        for tool in snapshot.list_searchable_tools()
    )


def _shorten_description(snapshot: AgentSnapshot, name: str) -> str:
    from mcp_servers.scanning.description_markup import strip_markup

    description = strip_markup(snapshot.tools[name].description)
    return make_visible(" ".join(description.split()), MAX_DESCRIPTION_LENGTH)


FIND_TOOLS_TOOL = BuiltinTool(
    name=FIND_TOOLS,
    description=format_message(
        "Search for more tools you can call. Describe what to do and with what. Returns "
        "the tool names and makes the tools available from then on."
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
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    run=_handle_find_tools,
    needs_many_tools=True,
    labels=(FlowLabel.REPEATABLE,),
)
