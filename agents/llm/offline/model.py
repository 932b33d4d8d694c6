"""The offline model: answers from rules alone, the same for the same conversation.

It makes a fresh installation useful without a network or a key, and it never pretends: it says
that it isn't a language model. A turn either calls tools or tells what the last calls gave.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agents.llm.conversation import in_order, next_turn
from agents.llm.offline import telling
from agents.llm.offline.choosing import Index
from agents.llm.offline.commands import Command, Mistyped, close_to, commands_in
from agents.llm.offline.evidence import MAX_TEXT
from agents.llm.offline.filling import Context, fill
from agents.llm.offline.planning import Asked, Plan, plan, planned
from agents.llm.port import (
    Finish,
    Message,
    OnText,
    Reply,
    ToolCall,
    ToolSpec,
    Usage,
    assistant_message,
    call_id,
)
from agents.llm.prices import count_tokens, estimate_tokens, shortened

CHUNK = 40  # characters that are streamed at once, about
EARLIER = 8  # messages looked back at for what the last one leaves out
GREETING = re.compile(
    r"\s*(?:hi|hello|hey|help|good (?:morning|day|evening|afternoon)|thanks|thank you"
    r"|who are you|what are you|what (?:can|do) you do|what tools.*)\b[^\n]{0,40}",
    re.I,
)
CANCEL = re.compile(
    r"\s*(?:no|nope|nothing|never ?mind|cancel|stop|forget (?:it|that))\b[ ,]*(?:thanks"
    r"|thank you)?[.!\s]*",
    re.I,
)


@dataclass
class Answer:
    """What a turn says and calls; `asked` is remembered until the next turn."""

    text: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    asked: Asked | None = None


class OfflineModel:
    """Rules instead of a language model; implements `agents.llm.port.Model`."""

    async def request(
        self,
        messages: Sequence[Message],
        *,
        instructions: str = "",
        tools: Sequence[ToolSpec] = (),
        max_tokens: int | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Answer from the conversation; the text is streamed in pieces."""
        # Reading hundreds of definitions takes longer than the loop may be held.
        reply = await asyncio.to_thread(_reply, messages, instructions, tuple(tools), max_tokens)
        if on_text is not None:
            for piece in pieces(reply.text):
                await on_text(piece)
        return reply


def pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces that end between words; together they are the text."""
    piece = ""
    for word in re.findall(r"\s*\S+|\s+$", text):
        if piece and len(piece) + len(word) > CHUNK:
            yield piece
            piece = ""
        piece += word
    if piece:
        yield piece


def _answer(messages: list[Message], instructions: str, tools: tuple[ToolSpec, ...]) -> Answer:
    last = max((at for at, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    new = messages[last + 1 :]
    said = "\n".join(message["text"] for message in new if message["role"] == "user")
    results = [message for message in new if message["role"] == "tool"]
    notices = telling.notices_in(instructions)
    answer = Answer()
    if said.strip():
        answer = _to_words(said, messages[: last + 1], instructions, tools)
    elif not results:
        answer.text = telling.introduction(tools, notices)
    if results:
        told = _told(messages, last, results, tools, [] if said else telling.of_servers(notices))
        answer.text = f"{told}\n\n{answer.text}".strip()
    return answer


def _told(
    messages: Sequence[Message],
    last: int,
    results: Sequence[Message],
    tools: Sequence[ToolSpec],
    notices: Sequence[str],
) -> str:
    parts = [telling.results_text(messages[last]["calls"], results)]
    names = [tool.name for tool in tools]
    for result in results:
        near = close_to(result["name"], names) if result["is_error"] else []
        if near and result["name"] not in names:
            offers = " or ".join(f"`/{name}`" for name in near)
            parts.append(f"`{result['name']}` isn't a tool of this agent. Did you mean {offers}?")
    parts.append(telling.unavailable_text(notices))
    answered_before = any(m["role"] == "tool" for m in messages[:last])
    parts.append("" if answered_before else telling.FOOTNOTE)
    return "\n\n".join(part for part in parts if part)


def _to_words(
    said: str, before: Sequence[Message], instructions: str, tools: tuple[ToolSpec, ...]
) -> Answer:
    """Answer what a person wrote: typed lines run as they stand, else a tool is looked for."""
    notices = telling.notices_in(instructions)
    try:
        commands = commands_in(said, [tool.name for tool in tools])
    except Mistyped as error:
        return Answer(text=f"{error}\n\nNothing was run.")
    context = _context(before, instructions)
    if commands:
        return _run(commands, tools, context, notices)
    asked = _asked(before)
    if asked and CANCEL.fullmatch(said):
        return Answer(text="All right, nothing was run.")
    greeted = GREETING.fullmatch(said)
    decided = plan(said[:MAX_TEXT], Index(tools), context, None if greeted else asked)
    if decided.calls or decided.question:
        return _decided(decided)
    if greeted and not decided.nearby:
        return Answer(text=telling.introduction(tools, notices))
    return Answer(text=telling.nothing_fits(tools, decided.nearby, notices))


def _run(
    commands: Sequence[Command],
    tools: tuple[ToolSpec, ...],
    context: Context,
    notices: Sequence[str],
) -> Answer:
    answer = Answer()
    by_name = {tool.name: tool for tool in tools}
    for command in commands:
        if command.arguments is not None:
            answer.calls.append((command.name, command.arguments))
        elif command.known:
            filled = _decided(planned(fill(by_name[command.name], command.words, context)))
            if filled.asked is not None:
                return filled
            answer.calls += filled.calls
        elif command.name == "tools":
            answer.text = telling.tools_text(tools, command.words, limit=len(tools))
        else:
            answer.text = telling.introduction(tools, notices)
    return answer


def _decided(decided: Plan) -> Answer:
    question = decided.question
    if question is None:
        return Answer(calls=list(decided.calls))
    asked = Asked(question.tool.name, question.arguments, question.missing)
    return Answer(text=telling.question_text(question), asked=asked)


def _context(before: Sequence[Message], instructions: str) -> Context:
    said = [m["text"][:MAX_TEXT] for m in reversed(before) if m["role"] == "user"]
    used: dict[str, Any] = {}
    recent: frozenset[str] = frozenset()
    for message in before:
        calls = message.get("calls") or ()
        for call in calls:
            used |= call["arguments"] or {}
        recent = frozenset(call["name"] for call in calls) or recent
    return Context(instructions, tuple(said[:EARLIER]), used, recent)


def _asked(before: Sequence[Message]) -> Asked | None:
    """Return the question that the last turn ended with."""
    asked = before[-1].get("asked") if before else None
    if not asked:
        return None
    return Asked(asked["tool"], asked["arguments"], tuple(asked["missing"]))


def _reply(
    messages: Sequence[Message],
    instructions: str,
    tools: tuple[ToolSpec, ...],
    max_tokens: int | None = None,
) -> Reply:
    turn = next_turn(messages)
    answer = _answer(in_order(messages), instructions, tools)
    calls = tuple(
        ToolCall(index, name, arguments, json.dumps(arguments), call_id(turn, index))
        for index, (name, arguments) in enumerate(answer.calls)
    )
    extra: dict[str, Any] = {}
    if answer.asked is not None:
        extra["asked"] = {
            "tool": answer.asked.tool,
            "arguments": answer.asked.arguments,
            "missing": list(answer.asked.missing),
        }
    finish: Finish = "tool_calls" if calls else "stop"
    text, written = answer.text, _length(answer.text, calls)
    if max_tokens is not None and written > max_tokens:
        text, calls, finish = shortened(text, max_tokens), (), "length"
        written = _length(text, calls)
    return Reply(
        text=text,
        calls=calls,
        usage=Usage(estimate_tokens(messages, instructions, tools), written),
        finish=finish,
        message=assistant_message(turn, text, calls, **extra),
    )


def _length(text: str, calls: Sequence[ToolCall]) -> int:
    """Return how many tokens an answer counts as."""
    return count_tokens(text) + sum(count_tokens(call.name + call.raw_arguments) for call in calls)
