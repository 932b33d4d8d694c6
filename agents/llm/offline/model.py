"""The offline model: plans calls for messages, and parses typed commands.

It makes a new installation usable without a network or a key, and always says that it isn't a
language model. A turn either calls tools or shows the last results.

Typed commands run as written, several at once. Their JSON may span lines; a tool's own name is
enough if it is unique.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from agents.llm.interface import (
    Finish,
    Message,
    ModelReply,
    OnText,
    TokenUsage,
    ToolCall,
    ToolSpec,
    build_assistant_message,
    call_id,
)
from agents.llm.messages import get_next_turn, order_messages
from agents.llm.offline import replies
from agents.llm.offline.arguments import UNSET, MessageContext, PartialCall, convert_value, fill
from agents.llm.offline.match_tools import ToolCandidate, ToolTermIndex
from agents.llm.offline.text_analysis import (
    HARMFUL_STEMS,
    MAX_TEXT,
    STRONG,
    extract_values,
    to_stems,
)
from agents.llm.pricing import count_tokens, estimate_tokens, truncate_text

Call = tuple[str, dict[str, Any]]

MAX_CALLS = 8  # from one message in words
MAX_SPLIT = 600  # characters of a message that is tried in parts
MAX_TRIES = 24  # parts that are tried
ENDS = re.compile(r"(?<=[.?!;])\s+|\n+|,?\s+(?:and then|then)\s+", re.I)
JOINTS = re.compile(r",?\s+and\s+|,\s+", re.I)


@dataclass(frozen=True)
class OfflinePlan:
    """What to do with a message: calls, a question about missing arguments, or suggested tools."""

    calls: tuple[Call, ...] = ()
    question: PartialCall | None = None
    nearby: tuple[ToolSpec, ...] = ()


@dataclass(frozen=True)
class MissingArguments:
    """The previous turn's question: the tool, its known arguments and the missing ones."""

    tool: str
    arguments: dict[str, Any]
    missing: tuple[str, ...]


def plan(
    text: str, index: ToolTermIndex, context: MessageContext, asked: MissingArguments | None = None
) -> OfflinePlan:
    """Return the plan for a message in natural language."""
    whole = index.best(text, context)
    if asked is not None and not (whole is not None and whole.ready and whole.by_words):
        answered = _parse_answer(asked, text, index, context)
        if answered is not None:
            return answered
    parts = _MessageParts(index, context, text, whole)
    calls = parts.calls() if len(text) <= MAX_SPLIT else None
    if calls and (whole is None or not whole.ready or parts.says_more_than(whole)):
        return OfflinePlan(calls=tuple(calls[:MAX_CALLS]))
    if whole is None:
        near = [found for found in index.candidates(text, context) if found.convincing]
        return OfflinePlan(nearby=tuple(found.filling.tool for found in near[:MAX_CALLS]))
    return build_plan(whole.filling)


def build_plan(filling: PartialCall) -> OfflinePlan:
    """Return a plan with the calls, or with a question if arguments are missing."""
    if filling.missing:
        return OfflinePlan(question=filling)
    return OfflinePlan(calls=tuple(_expand_calls(filling))[:MAX_CALLS])


def _expand_calls(filling: PartialCall) -> Iterator[Call]:
    """Yield the call and one for each alternative value; only the first for a harmful tool."""
    yield filling.tool.name, filling.arguments
    slot = filling.lone
    if slot is not None and HARMFUL_STEMS.isdisjoint(to_stems(filling.tool.name)):
        for found in filling.others:
            yield filling.tool.name, filling.arguments | {slot.name: found.value}


def _is_in(start: int, filling: PartialCall) -> bool:
    return any(found.start <= start < found.end for found in filling.taken)


def _parse_answer(
    asked: MissingArguments, text: str, index: ToolTermIndex, context: MessageContext
) -> OfflinePlan | None:
    """Return the plan if the message answers the previous question; else None."""
    tool = next((tool for tool in index.tools if tool.name == asked.tool), None)
    if tool is None:
        return None
    filling = fill(tool, text, context)
    new = {name: filling.arguments[name] for name in asked.missing if name in filling.arguments}
    missing = [name for name in asked.missing if name not in new]
    for slot in filling.slots:
        if missing == [slot.name] and not new:
            # With one missing argument, the whole message is its value.
            value = convert_value(slot, text.strip().strip("\"'`"))
            if value is not UNSET:
                new, missing = {slot.name: value}, []
    if not new:
        return None
    arguments = asked.arguments | new
    return build_plan(replace(filling, arguments=arguments, missing=tuple(missing)))


class _MessageParts:
    """Splits a message into parts that are each a ready call."""

    def __init__(
        self, index: ToolTermIndex, context: MessageContext, text: str, whole: ToolCandidate | None
    ) -> None:
        self.index = index
        # A part may omit what another one says: "git status and git log of /repo".
        recent = frozenset({whole.filling.tool.name}) if whole else context.recent
        self.context = replace(context, earlier=(text, *context.earlier), recent=recent)
        self.text = text
        self.tries = 0
        self.named: dict[str, bool] = {}  # tools, and whether the part says what they do

    def calls(self) -> list[Call] | None:
        found = self._split(self.text)
        if found is None:
            return None
        distinct = [call for at, call in enumerate(found) if call not in found[:at]]
        return distinct if len(distinct) > 1 else None

    def says_more_than(self, whole: ToolCandidate) -> bool:
        """Tell whether the parts use more of the message than the single call."""
        told = [f for f in extract_values(self.text) if f.kind in STRONG or f.kind == "quoted"]
        if not all(_is_in(found.start, whole.filling) for found in told):
            return True
        return len(self.named) > 1 and all(self.named.values())

    def _split(self, text: str) -> list[Call] | None:
        pieces = [piece for piece in ENDS.split(text) if piece.strip()]
        if len(pieces) > 1:
            return self._all(pieces)
        for joint in JOINTS.finditer(text):
            if not self._quoted(joint.start(), text):
                found = self._all([text[: joint.start()], text[joint.end() :]])
                if found is not None:
                    return found
        return None

    def _all(self, pieces: Sequence[str]) -> list[Call] | None:
        calls: list[Call] = []
        for piece in pieces:
            found = self._one(piece)
            if found is None:
                return None
            calls.extend(found)
        return calls

    def _one(self, piece: str) -> list[Call] | None:
        self.tries += 1
        if self.tries > MAX_TRIES:
            return None
        candidate = self.index.best(piece, self.context)
        if candidate is not None and candidate.ready:
            inner = self._split(piece)
            if inner is None:
                name = candidate.filling.tool.name
                self.named[name] = set(to_stems(name)[-1:]) <= set(to_stems(piece))
            return inner or list(_expand_calls(candidate.filling))
        return self._split(piece)

    @staticmethod
    def _quoted(at: int, text: str) -> bool:
        return any(f.kind == "quoted" and f.start < at < f.end for f in extract_values(text))


HEAD = re.compile(r"^[ \t]*/([A-Za-z0-9_.-]{1,128})(?=[ \t{\n]|$)[ \t]*", re.M)
OWN = ("help", "tools")
MAX_COMMANDS = 50


@dataclass(frozen=True)
class Command:
    """A typed command: a tool with its arguments, or with text to fill them from."""

    name: str
    arguments: dict[str, Any] | None
    words: str
    known: bool


class CommandSyntaxError(ValueError):
    """A command that can't be parsed; the message says where and why."""


def parse_commands(text: str, names: Sequence[str]) -> list[Command]:
    """Return the commands of a message, in order; empty if there are none.

    Raises `CommandSyntaxError` if any is invalid; then none should run.
    """
    found: list[Command] = []
    at = 0
    while match := HEAD.search(text, at):
        command, at = _read(text, match, names)
        if command.known or command.arguments is not None or command.name in OWN:
            found.append(command)
            if len(found) > MAX_COMMANDS:
                raise CommandSyntaxError(f"These are more than {MAX_COMMANDS} calls at once.")
        elif text.strip() == match.group().strip():
            raise CommandSyntaxError(_format_unknown_tool(command.name, names))
    return found


def find_tool_name(name: str, names: Sequence[str]) -> str:
    """Return the tool of a typed name: an exact match, else the only one that ends in it."""
    if name in names:
        return name
    plain = re.sub(r"\W", "_", name)
    ending = [other for other in names if other.endswith((f"_{name}", f"_{plain}"))]
    return ending[0] if len(ending) == 1 else name


def close_to(name: str, names: Sequence[str]) -> list[str]:
    """Return the tools with similar names, the most similar first."""
    own = {other.rpartition("_")[2]: other for other in names}
    near = get_close_matches(name, names, n=3, cutoff=0.75)
    return near or [own[match] for match in get_close_matches(name, own, n=3, cutoff=0.75)]


def _read(text: str, match: re.Match[str], names: Sequence[str]) -> tuple[Command, int]:
    name = find_tool_name(match.group(1), names)
    at = match.end()
    line_end = text.find("\n", at) % (len(text) + 1)
    if text[at : at + 1] != "{":
        return Command(name, None, text[at:line_end].strip(), name in names), line_end
    try:
        arguments, end = json.JSONDecoder(parse_constant=_reject_constant).raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise CommandSyntaxError(_format_json_error(text, at, name, error)) from error
    line_end = text.find("\n", end) % (len(text) + 1)
    behind = text[end:line_end].strip()
    if behind:
        raise CommandSyntaxError(
            f"Line {_count_line_number(text, end)}: "
            f"there is text behind the JSON of `/{name}`: `{behind[:80]}`."
        )
    return Command(name, arguments, "", name in names), line_end


def _format_json_error(text: str, at: int, name: str, error: Exception) -> str:
    where = f"Line {_count_line_number(text, at)}"
    if isinstance(error, json.JSONDecodeError):
        where = f"Line {error.lineno}, column {error.colno}"
        return f"{where}: the arguments of `/{name}` are not JSON ({error.msg.lower()})."
    return f"{where}: the arguments of `/{name}` are not JSON ({error})."


def _format_unknown_tool(name: str, names: Sequence[str]) -> str:
    near = close_to(name, names)
    hint = " Did you mean " + " or ".join(f"`/{other}`" for other in near) + "?" if near else ""
    return f"There is no tool `{name}` here.{hint} `/tools` lists them."


def _count_line_number(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} isn't a JSON value")


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
class OfflineAnswer:
    """A turn's text and calls; `missing_arguments` is kept until the next turn."""

    text: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    asked: MissingArguments | None = None


class OfflineModel:
    """Rules instead of a language model; implements `agents.llm.interface.LanguageModel`."""

    async def request(
        self,
        messages: Sequence[Message],
        *,
        instructions: str = "",
        tools: Sequence[ToolSpec] = (),
        max_tokens: int | None = None,
        on_text: OnText | None = None,
    ) -> ModelReply:
        """Answer from the conversation; the text is streamed in pieces."""
        # Hundreds of definitions would block the event loop.
        reply = await asyncio.to_thread(_reply, messages, instructions, tuple(tools), max_tokens)
        if on_text is not None:
            for piece in split_text(reply.text):
                await on_text(piece)
        return reply


def split_text(text: str) -> Iterator[str]:
    """Yield a text in pieces that end between words."""
    piece = ""
    for word in re.findall(r"\s*\S+|\s+$", text):
        if piece and len(piece) + len(word) > CHUNK:
            yield piece
            piece = ""
        piece += word
    if piece:
        yield piece


def _answer(
    messages: list[Message], instructions: str, tools: tuple[ToolSpec, ...]
) -> OfflineAnswer:
    last = max((at for at, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    new = messages[last + 1 :]
    said = "\n".join(message["text"] for message in new if message["role"] == "user")
    results = [message for message in new if message["role"] == "tool"]
    notices = replies.parse_notices(instructions)
    answer = OfflineAnswer()
    if said.strip():
        answer = _to_words(said, messages[: last + 1], instructions, tools)
    elif not results:
        answer.text = replies.render_introduction(tools, notices)
    if results:
        told = _render_result_reply(
            messages, last, results, tools, [] if said else replies.filter_failures(notices)
        )
        answer.text = f"{told}\n\n{answer.text}".strip()
    return answer


def _render_result_reply(
    messages: Sequence[Message],
    last: int,
    results: Sequence[Message],
    tools: Sequence[ToolSpec],
    notices: Sequence[str],
) -> str:
    parts = [replies.render_results(messages[last]["calls"], results)]
    names = [tool.name for tool in tools]
    for result in results:
        near = close_to(result["name"], names) if result["is_error"] else []
        if near and result["name"] not in names:
            offers = " or ".join(f"`/{name}`" for name in near)
            parts.append(f"`{result['name']}` isn't a tool of this agent. Did you mean {offers}?")
    parts.append(replies.render_unavailable(notices))
    answered_before = any(m["role"] == "tool" for m in messages[:last])
    parts.append("" if answered_before else replies.FOOTNOTE)
    return "\n\n".join(part for part in parts if part)


def _to_words(
    said: str, before: Sequence[Message], instructions: str, tools: tuple[ToolSpec, ...]
) -> OfflineAnswer:
    """Answer a user's text: run typed commands, else find a matching tool."""
    notices = replies.parse_notices(instructions)
    try:
        commands = parse_commands(said, [tool.name for tool in tools])
    except CommandSyntaxError as error:
        return OfflineAnswer(text=f"{error}\n\nNothing was run.")
    context = _build_context(before, instructions)
    if commands:
        return _run(commands, tools, context, notices)
    asked = _find_missing_arguments(before)
    if asked and CANCEL.fullmatch(said):
        return OfflineAnswer(text="All right, nothing was run.")
    greeted = GREETING.fullmatch(said)
    decided = plan(said[:MAX_TEXT], ToolTermIndex(tools), context, None if greeted else asked)
    if decided.calls or decided.question:
        return _build_answer(decided)
    if greeted and not decided.nearby:
        return OfflineAnswer(text=replies.render_introduction(tools, notices))
    return OfflineAnswer(text=replies.render_no_match(tools, decided.nearby, notices))


def _run(
    commands: Sequence[Command],
    tools: tuple[ToolSpec, ...],
    context: MessageContext,
    notices: Sequence[str],
) -> OfflineAnswer:
    answer = OfflineAnswer()
    by_name = {tool.name: tool for tool in tools}
    for command in commands:
        if command.arguments is not None:
            answer.calls.append((command.name, command.arguments))
        elif command.known:
            filled = _build_answer(build_plan(fill(by_name[command.name], command.words, context)))
            if filled.asked is not None:
                return filled
            answer.calls += filled.calls
        elif command.name == "tools":
            answer.text = replies.render_tools(tools, command.words, limit=len(tools))
        else:
            answer.text = replies.render_introduction(tools, notices)
    return answer


def _build_answer(decided: OfflinePlan) -> OfflineAnswer:
    question = decided.question
    if question is None:
        return OfflineAnswer(calls=list(decided.calls))
    asked = MissingArguments(question.tool.name, question.arguments, question.missing)
    return OfflineAnswer(text=replies.render_question(question), asked=asked)


def _build_context(before: Sequence[Message], instructions: str) -> MessageContext:
    said = [m["text"][:MAX_TEXT] for m in reversed(before) if m["role"] == "user"]
    used: dict[str, Any] = {}
    recent: frozenset[str] = frozenset()
    for message in before:
        calls = message.get("calls") or ()
        for call in calls:
            used |= call["arguments"] or {}
        recent = frozenset(call["name"] for call in calls) or recent
    return MessageContext(instructions, tuple(said[:EARLIER]), used, recent)


def _find_missing_arguments(before: Sequence[Message]) -> MissingArguments | None:
    """Return the question of the last turn, if any."""
    asked = before[-1].get("asked") if before else None
    if not asked:
        return None
    return MissingArguments(asked["tool"], asked["arguments"], tuple(asked["missing"]))


def _reply(
    messages: Sequence[Message],
    instructions: str,
    tools: tuple[ToolSpec, ...],
    max_tokens: int | None = None,
) -> ModelReply:
    turn = get_next_turn(messages)
    answer = _answer(order_messages(messages), instructions, tools)
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
    text, written = answer.text, _count_answer_tokens(answer.text, calls)
    if max_tokens is not None and written > max_tokens:
        text, calls, finish = truncate_text(text, max_tokens), (), "length"
        written = _count_answer_tokens(text, calls)
    return ModelReply(
        text=text,
        calls=calls,
        usage=TokenUsage(estimate_tokens(messages, instructions, tools), written),
        finish=finish,
        message=build_assistant_message(turn, text, calls, **extra),
    )


def _count_answer_tokens(text: str, calls: Sequence[ToolCall]) -> int:
    """Return the token count of an answer."""
    return count_tokens(text) + sum(count_tokens(call.name + call.raw_arguments) for call in calls)
