"""The tool `find_tools`: full-text search over an agent's tools.

`FIND_TOOLS_TOOL` is for agents' models, which are then shown what they found. `CATALOG_FIND_TOOL`
and `DESCRIBE_TOOL_TOOL` are for MCP clients that use the search view of the gateway.
"""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import nsmallest
from math import log, log1p
from typing import Any

from agents.builtin_tools.types import AgentSnapshot, BuiltinTool, BuiltinToolContext
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.usage.query_rollups import count_recent_successes
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
SERVER_WEIGHT = 1.0
SYNONYM_WEIGHT = 0.4
# How much the most successful tool's score is increased: less than what one word matters.
SUCCESS_WEIGHT = 0.15
# Found tools that a model is shown; it can find earlier ones again.
MAX_FOUND_TOOLS = 40
# Characters per description and per tool's parameters, so that no server can dominate results.
MAX_INDEXED_LENGTH = 4_096
# Different words of a query that are searched.
MAX_QUERY_WORDS = 24
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
# Words that tools and people use for the same thing.
_SYNONYMS = (
    ("list", "show", "display", "view", "browse", "enumerate"),
    ("get", "fetch", "read", "retrieve", "show", "describe", "view", "details"),
    ("find", "search", "query", "lookup", "locate"),
    ("create", "add", "new", "make", "provision", "insert"),
    ("delete", "remove", "drop", "erase", "destroy"),
    ("update", "edit", "change", "modify", "set", "adjust"),
    ("send", "post", "publish", "deliver"),
    ("start", "run", "launch", "execute", "trigger"),
    ("stop", "cancel", "abort", "terminate", "halt"),
    ("email", "mail"),
    ("repository", "repo"),
    ("issue", "ticket"),
    ("user", "member", "person", "people", "account"),
    ("invoice", "bill"),
    ("database", "db"),
    ("folder", "directory"),
    ("document", "doc", "file"),
    ("image", "picture", "photo"),
    ("meeting", "event", "appointment"),
    ("message", "chat"),
    ("customer", "client"),
    ("kubernetes", "k8s"),
    ("permission", "access", "role"),
    ("configuration", "config", "setting"),
    ("price", "cost"),
)
FIND_TOOLS = "find_tools"
DESCRIBE_TOOL = "describe_tool"
CALL_TOOL = "call_tool"
DEFAULT_LIMIT, MAX_LIMIT = 8, 20
MAX_DESCRIPTION_LENGTH = 160
NO_MATCH_TEXT = "No tools match. Try other words: what to do, and with what."
# How long counts of successful calls are used before they are counted again.
SUCCESSES_LIFETIME_S = 300.0
_TOOL_NAME_SCHEMA = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "description": f"The name of a tool, as {FIND_TOOLS} returns it.",
}
# `call_tool` is no tool of its own: the gateway calls the tool that it names.
CALL_TOOL_DECLARATION: dict[str, Any] = {
    "name": CALL_TOOL,
    "description": f"Call a tool that {FIND_TOOLS} returned. Returns the tool's own result.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "name": _TOOL_NAME_SCHEMA,
            "arguments": {
                "type": "object",
                "description": f"The tool's arguments, as {DESCRIBE_TOOL} describes them.",
            },
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
}


@dataclass(frozen=True, slots=True)
class SearchableTool:
    """A tool as it is indexed: its name, description and input schema, and its server's name."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    server: str = ""


class ToolSearchIndex:
    """A search index of tools: for each word, the tools that have it and what it adds."""

    def __init__(self, tools: Iterable[SearchableTool]) -> None:
        """Index the tools: about 10,000 words in 0.1 s."""
        weights = {tool.name: _compute_weights(tool) for tool in tools}
        lengths = {name: sum(words.values()) for name, words in weights.items()}
        average_length = sum(lengths.values()) / max(1, len(lengths)) or 1
        tool_counts = Counter(word for words in weights.values() for word in words)
        count = len(weights)
        self._scores: dict[str, dict[str, float]] = {word: {} for word in tool_counts}
        self._matches_with_synonyms: dict[str, dict[str, float]] = {}
        for name, words in weights.items():
            damping = K1 * (1 - B + B * lengths[name] / average_length)
            for word, weight in words.items():
                tool_count = tool_counts[word]
                rarity = log(1 + (count - tool_count + 0.5) / (tool_count + 0.5))
                self._scores[word][name] = rarity * weight * (K1 + 1) / (weight + damping)

    def search(
        self, query: str, limit: int, successes: Mapping[str, int] | None = None
    ) -> list[str]:
        """Return the names of the best matches, best first; ties are sorted by name.

        `successes` are the numbers of successful calls by tool name.
        """
        scores: dict[str, float] = {}
        for word in list(dict.fromkeys(split_words(query)))[:MAX_QUERY_WORDS]:
            for name, score in self._find_matches(word).items():
                scores[name] = scores.get(name, 0.0) + score
        if successes and (most := max(successes.values())) > 0:
            for name in scores.keys() & successes.keys():
                scores[name] *= 1 + SUCCESS_WEIGHT * log1p(successes[name]) / log1p(most)
        return nsmallest(limit, scores, key=lambda name: (-scores[name], name))

    def _find_matches(self, word: str) -> Mapping[str, float]:
        """Return what a word of the query adds to tools' scores, by name."""
        if word not in _OTHERS:
            return self._scores.get(word, {})
        if (matches := self._matches_with_synonyms.get(word)) is not None:
            return matches
        matches = {}
        for other in _OTHERS[word]:
            for name, score in self._scores.get(other, {}).items():
                matches[name] = max(score * SYNONYM_WEIGHT, matches.get(name, 0.0))
        for name, score in self._scores.get(word, {}).items():
            matches[name] = max(score, matches.get(name, 0.0))
        self._matches_with_synonyms[word] = matches
        return matches


def split_words(text: str) -> list[str]:
    """Return the stemmed, lower-case words of a text, split at camel case."""
    words = (word.lower() for word in _WORD.findall(_CAMEL_CASE_BOUNDARY.sub(" ", text)))
    return [_stem_word(word) for word in words if word not in _STOP_WORDS]


def _stem_word(word: str) -> str:
    for ending, replacement in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: len(word) - len(ending)] + replacement
    return word


def _list_other_words() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each word that has synonyms, and those, as they are indexed."""
    groups = [tuple(map(_stem_word, group)) for group in _SYNONYMS]
    for word in dict.fromkeys(word for group in groups for word in group):
        others = dict.fromkeys(other for group in groups if word in group for other in group)
        yield word, tuple(other for other in others if other != word)


_OTHERS = dict(_list_other_words())


def _compute_weights(tool: SearchableTool) -> dict[str, float]:
    weights: dict[str, float] = {}
    names, descriptions = _collect_parameter_texts(tool.parameters)
    for words, weight in (
        (tool.name, NAME_WEIGHT),
        (tool.server, SERVER_WEIGHT),
        (tool.description[:MAX_INDEXED_LENGTH], DESCRIPTION_WEIGHT),
        (names[:MAX_INDEXED_LENGTH], PARAMETER_WEIGHT),
        (descriptions[:MAX_INDEXED_LENGTH], PARAMETER_DESCRIPTION_WEIGHT),
    ):
        for word in split_words(words):
            weights[word] = weights.get(word, 0.0) + weight
    return weights


def _collect_parameter_texts(schema: Mapping[str, Any]) -> tuple[str, str]:
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


async def _handle_find_tools(
    context: BuiltinToolContext, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Return the matching tools for a model, which can call them from then on."""
    return await _find_tools(context, arguments, "You can call these now.")


async def _handle_catalog_find_tools(
    context: BuiltinToolContext, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Return the matching tools for a client of the search view."""
    hint = f"Use {DESCRIBE_TOOL} for a tool's arguments, and {CALL_TOOL} to call it."
    return await _find_tools(context, arguments, hint)


async def _find_tools(
    context: BuiltinToolContext, arguments: dict[str, Any], hint: str
) -> dict[str, Any]:
    """Return the matching tools, one per line, and their names as structured content.

    Only tools that policy allows are searched.
    """
    snapshot = context.snapshot
    index = snapshot.memo.get(FIND_TOOLS)
    if index is None:
        index = snapshot.memo[FIND_TOOLS] = await asyncio.to_thread(_build_index, snapshot)
    successes = await _get_successes(context)
    names = index.search(arguments["query"], arguments.get("limit", DEFAULT_LIMIT), successes)
    lines = [f"{name}: {_shorten_description(snapshot, name)}" for name in names]
    if lines:
        lines.append(hint)
    return {
        "content": [{"type": "text", "text": "\n".join(lines) or NO_MATCH_TEXT}],
        "structuredContent": {"tools": names},
    }


def _build_index(snapshot: AgentSnapshot) -> ToolSearchIndex:
    return ToolSearchIndex(
        SearchableTool(tool.name, tool.description, tool.input_schema, tool.facts.server_name)
        for tool in snapshot.list_searchable_tools()
    )


async def _get_successes(context: BuiltinToolContext) -> Mapping[str, int]:
    """Return the numbers of successful calls by tool name.

    Counts the agent's calls if the principal may see the audit log, else only its own.
    """
    actor = None if context.principal.may(Action.VIEW_AUDIT) else context.principal.actor
    key = "tool successes", actor and (actor.kind, actor.id)
    memo, now = context.snapshot.memo, time.monotonic()
    counted_at, successes = memo.get(key, (0.0, None))
    if successes is None or counted_at + SUCCESSES_LIFETIME_S < now:
        counts = await get_runtime().run_orm(
            count_recent_successes, context.organization_id, context.agent_id, actor
        )
        successes = {
            tool.name: count
            for tool in context.snapshot.list_searchable_tools()
            if (count := counts.get((tool.facts.server_id, tool.facts.own_name)))
        }
        memo[key] = now, successes
    return successes


def _shorten_description(snapshot: AgentSnapshot, name: str) -> str:
    from mcp_servers.scanning.definition_text import strip_markup

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
                "description": "What the tool should do, in a few words.",
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

CATALOG_FIND_TOOL = replace(
    FIND_TOOLS_TOOL,
    description=format_message(
        "Search for tools. Describe what to do and with what. Returns the names and descriptions "
        "of the best matches."
    ),
    run=_handle_catalog_find_tools,
    needs_many_tools=False,
)


async def _handle_describe_tool(
    context: BuiltinToolContext, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Return a tool's declaration; raises `NotFound` for one that can't be called."""
    name = arguments["name"]
    tools = {tool.name: tool for tool in context.snapshot.list_searchable_tools()}
    tool = tools.get(name)
    if tool is None:
        raise NotFound(
            format_message("There is no tool {name!r}.", name=make_visible(name, 100)),
            code="unknown_tool",
            remedy=format_message("Search for tools with `find_tools`."),
        )
    declaration = {**tool.declaration, "name": tool.name}
    return {
        "content": [{"type": "text", "text": json.dumps(declaration, ensure_ascii=False)}],
        "structuredContent": {"tool": declaration},
    }


DESCRIBE_TOOL_TOOL = BuiltinTool(
    name=DESCRIBE_TOOL,
    description=format_message(
        "Show a tool's full description and the JSON Schema of its arguments."
    ),
    input_schema={
        "type": "object",
        "properties": {"name": _TOOL_NAME_SCHEMA},
        "required": ["name"],
        "additionalProperties": False,
    },
    run=_handle_describe_tool,
    labels=(FlowLabel.REPEATABLE,),
)
# The tools of the search view that are built-in tools, by name.
CATALOG_TOOLS = {tool.name: tool for tool in (CATALOG_FIND_TOOL, DESCRIBE_TOOL_TOOL)}
