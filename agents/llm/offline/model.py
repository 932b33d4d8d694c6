"""The offline model: plans calls for messages, and parses typed commands.

It makes a new installation usable without a network or a key, and always says that it isn't a
language model. A turn either calls tools or shows the last results.

Typed commands run as written, several at once. Their JSON may span lines; a tool's own name is
enough if it is unique.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
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
    build_call_id,
)
from agents.llm.messages import get_next_turn, order_messages
from agents.llm.offline import replies
from agents.llm.offline.arguments import (
    MessageContext,
    PartialCall,
    convert_value,
    fill_arguments,
)
from agents.llm.offline.match_tools import ToolCandidate, ToolTermIndex
from agents.llm.offline.parameter_slots import UNSET
from agents.llm.offline.replies import render_output
from agents.llm.offline.text_analysis import (
    HARMFUL_STEMS,
    MAX_TEXT,
    STRONG_KINDS,
    extract_values,
    to_stems,
)
from agents.llm.token_estimates import count_tokens, estimate_tokens, truncate_text

Call = tuple[str, dict[str, Any]]

MAX_CALLS = 8  # from one message in words
MAX_SPLIT = 600  # characters of a message that is tried in parts
MAX_PARTS = 24  # parts that are tried
SENTENCE_END = re.compile(r"(?<=[.?!;])\s+|\n+|,?\s+(?:and then|then)\s+", re.I)
CONJUNCTION = re.compile(r",?\s+and\s+|,\s+", re.I)


@dataclass(frozen=True)
class OfflinePlan:
    """What to do with a message: calls, a question about missing arguments, or suggested tools."""

    calls: tuple[Call, ...] = ()
    incomplete_call: PartialCall | None = None
    suggested_tools: tuple[ToolSpec, ...] = ()


@dataclass(frozen=True)
class MissingArguments:
    """The previous turn's question: the tool, its known arguments and the missing ones."""

    tool: str
    arguments: dict[str, Any]
    missing: tuple[str, ...]


def plan_message(
    text: str,
    index: ToolTermIndex,
    context: MessageContext,
    previous_question: MissingArguments | None = None,
) -> OfflinePlan:
    """Return the plan for a message in natural language."""
    best_candidate = index.find_best(text, context)
    if previous_question is not None and not (
        best_candidate is not None and best_candidate.is_ready and best_candidate.matches_words
    ):
        answer_plan = _parse_answer(previous_question, text, index, context)
        if answer_plan is not None:
            return answer_plan
    parts = _MessageParts(index, context, text, best_candidate)
    calls = parts.find_calls() if len(text) <= MAX_SPLIT else None
    if calls and (
        best_candidate is None
        or not best_candidate.is_ready
        or parts.is_more_specific(best_candidate)
    ):
        return OfflinePlan(calls=tuple(calls[:MAX_CALLS]))
    if best_candidate is None:
        nearby_candidates = [
            candidate
            for candidate in index.rank_candidates(text, context)
            if candidate.is_convincing
        ]
        return OfflinePlan(
            suggested_tools=tuple(
                candidate.partial_call.tool for candidate in nearby_candidates[:MAX_CALLS]
            )
        )
    return build_plan(best_candidate.partial_call)


def build_plan(partial_call: PartialCall) -> OfflinePlan:
    """Return a plan with the calls, or with a question if arguments are missing."""
    if partial_call.missing:
        return OfflinePlan(incomplete_call=partial_call)
    return OfflinePlan(calls=tuple(_iterate_calls(partial_call))[:MAX_CALLS])


def _iterate_calls(partial_call: PartialCall) -> Iterator[Call]:
    """Yield the call and one for each alternative value; only the first for a harmful tool."""
    yield partial_call.tool.name, partial_call.arguments
    slot = partial_call.lone_slot
    if slot is not None and HARMFUL_STEMS.isdisjoint(to_stems(partial_call.tool.name)):
        for alternative in partial_call.alternatives:
            yield partial_call.tool.name, partial_call.arguments | {slot.name: alternative.value}


def _is_in_used_value(start: int, partial_call: PartialCall) -> bool:
    return any(
        used_value.start <= start < used_value.end for used_value in partial_call.used_values
    )


def _parse_answer(
    previous_question: MissingArguments, text: str, index: ToolTermIndex, context: MessageContext
) -> OfflinePlan | None:
    """Return the plan if the message answers the previous question; else None."""
    tool = next((tool for tool in index.tools if tool.name == previous_question.tool), None)
    if tool is None:
        return None
    partial_call = fill_arguments(tool, text, context)
    new_arguments = {
        name: partial_call.arguments[name]
        for name in previous_question.missing
        if name in partial_call.arguments
    }
    missing = [name for name in previous_question.missing if name not in new_arguments]
    for slot in partial_call.slots:
        if missing == [slot.name] and not new_arguments:
            # With one missing argument, the whole message is its value.
            value = convert_value(slot, text.strip().strip("\"'`"))
            if value is not UNSET:
                new_arguments, missing = {slot.name: value}, []
    if not new_arguments:
        return None
    arguments = previous_question.arguments | new_arguments
    return build_plan(replace(partial_call, arguments=arguments, missing=tuple(missing)))


class _MessageParts:
    """Splits a message into parts that are each a ready call."""

    def __init__(
        self,
        index: ToolTermIndex,
        context: MessageContext,
        text: str,
        best_candidate: ToolCandidate | None,
    ) -> None:
        self.index = index
        # A part may omit what another one says: "git status and git log of /repo".
        recent_tools = (
            frozenset({best_candidate.partial_call.tool.name})
            if best_candidate
            else context.recent_tools
        )
        self.context = replace(
            context, earlier_messages=(text, *context.earlier_messages), recent_tools=recent_tools
        )
        self.text = text
        self.tried_parts = 0
        self.verbs_stated: dict[str, bool] = {}  # tools, and whether the part says what they do

    def find_calls(self) -> list[Call] | None:
        all_calls = self._split_into_calls(self.text)
        if all_calls is None:
            return None
        distinct_calls = [
            call for index, call in enumerate(all_calls) if call not in all_calls[:index]
        ]
        return distinct_calls if len(distinct_calls) > 1 else None

    def is_more_specific(self, best_candidate: ToolCandidate) -> bool:
        """Tell whether the parts use more of the message than the single call."""
        stated_values = [
            value
            for value in extract_values(self.text)
            if value.kind in STRONG_KINDS or value.kind == "quoted"
        ]
        if not all(
            _is_in_used_value(stated_value.start, best_candidate.partial_call)
            for stated_value in stated_values
        ):
            return True
        return len(self.verbs_stated) > 1 and all(self.verbs_stated.values())

    def _split_into_calls(self, text: str) -> list[Call] | None:
        pieces = [piece for piece in SENTENCE_END.split(text) if piece.strip()]
        if len(pieces) > 1:
            return self._find_all_calls(pieces)
        for conjunction in CONJUNCTION.finditer(text):
            if not self._is_quoted(conjunction.start(), text):
                calls = self._find_all_calls(
                    [text[: conjunction.start()], text[conjunction.end() :]]
                )
                if calls is not None:
                    return calls
        return None

    def _find_all_calls(self, pieces: Sequence[str]) -> list[Call] | None:
        calls: list[Call] = []
        for piece in pieces:
            piece_calls = self._find_piece_calls(piece)
            if piece_calls is None:
                return None
            calls.extend(piece_calls)
        return calls

    def _find_piece_calls(self, piece: str) -> list[Call] | None:
        self.tried_parts += 1
        if self.tried_parts > MAX_PARTS:
            return None
        candidate = self.index.find_best(piece, self.context)
        if candidate is not None and candidate.is_ready:
            inner_calls = self._split_into_calls(piece)
            if inner_calls is None:
                name = candidate.partial_call.tool.name
                self.verbs_stated[name] = set(to_stems(name)[-1:]) <= set(to_stems(piece))
            return inner_calls or list(_iterate_calls(candidate.partial_call))
        return self._split_into_calls(piece)

    @staticmethod
    def _is_quoted(position: int, text: str) -> bool:
        return any(
            value.kind == "quoted" and value.start < position < value.end
            for value in extract_values(text)
        )


COMMAND_START = re.compile(r"^[ \t]*/([A-Za-z0-9_.-]{1,128})(?=[ \t{\n]|$)[ \t]*", re.M)
OWN_COMMANDS = ("help", "tools")
MAX_COMMANDS = 50


@dataclass(frozen=True)
class Command:
    """A typed command: a tool with its arguments, or with text to fill them from."""

    name: str
    arguments: dict[str, Any] | None
    free_text: str
    is_known: bool


class CommandSyntaxError(ValueError):
    """A command that can't be parsed; the message says where and why."""


def parse_commands(text: str, names: Sequence[str]) -> list[Command]:
    """Return the commands of a message, in order; empty if there are none.

    Raises `CommandSyntaxError` if any is invalid; then none should run.
    """
    commands: list[Command] = []
    position = 0
    while match := COMMAND_START.search(text, position):
        command, position = _parse_command(text, match, names)
        if command.is_known or command.arguments is not None or command.name in OWN_COMMANDS:
            commands.append(command)
            if len(commands) > MAX_COMMANDS:
                raise CommandSyntaxError(f"These are more than {MAX_COMMANDS} calls at once.")
        elif text.strip() == match.group().strip():
            raise CommandSyntaxError(_format_unknown_tool(command.name, names))
    return commands


def find_tool_name(name: str, names: Sequence[str]) -> str:
    """Return the tool of a typed name: an exact match, else the only one that ends in it."""
    if name in names:
        return name
    normalized_name = re.sub(r"\W", "_", name)
    matches = [
        candidate for candidate in names if candidate.endswith((f"_{name}", f"_{normalized_name}"))
    ]
    return matches[0] if len(matches) == 1 else name


def find_close_names(name: str, names: Sequence[str]) -> list[str]:
    """Return the tools with similar names, the most similar first."""
    names_by_ending = {candidate.rpartition("_")[2]: candidate for candidate in names}
    close_names = get_close_matches(name, names, n=3, cutoff=0.75)
    return close_names or [
        names_by_ending[ending]
        for ending in get_close_matches(name, names_by_ending, n=3, cutoff=0.75)
    ]


def _parse_command(text: str, match: re.Match[str], names: Sequence[str]) -> tuple[Command, int]:
    name = find_tool_name(match.group(1), names)
    position = match.end()
    line_end = text.find("\n", position) % (len(text) + 1)
    if text[position : position + 1] != "{":
        return Command(name, None, text[position:line_end].strip(), name in names), line_end
    try:
        arguments, end = json.JSONDecoder(parse_constant=_reject_constant).raw_decode(
            text, position
        )
    except (ValueError, RecursionError) as error:
        raise CommandSyntaxError(_format_json_error(text, position, name, error)) from error
    line_end = text.find("\n", end) % (len(text) + 1)
    trailing_text = text[end:line_end].strip()
    if trailing_text:
        raise CommandSyntaxError(
            f"Line {_count_line_number(text, end)}: "
            f"there is text behind the JSON of `/{name}`: `{trailing_text[:80]}`."
        )
    return Command(name, arguments, "", name in names), line_end


def _format_json_error(text: str, position: int, name: str, error: Exception) -> str:
    location = f"Line {_count_line_number(text, position)}"
    if isinstance(error, json.JSONDecodeError):
        location = f"Line {error.lineno}, column {error.colno}"
        return f"{location}: the arguments of `/{name}` are not JSON ({error.msg.lower()})."
    return f"{location}: the arguments of `/{name}` are not JSON ({error})."


def _format_unknown_tool(name: str, names: Sequence[str]) -> str:
    close_names = find_close_names(name, names)
    hint = (
        " Did you mean " + " or ".join(f"`/{candidate}`" for candidate in close_names) + "?"
        if close_names
        else ""
    )
    return f"There is no tool named `{name}`.{hint} To list the tools, enter `/tools`."


def _count_line_number(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} isn't a JSON value")


CHUNK_LENGTH = 40  # characters that are streamed at once, about
MAX_EARLIER_MESSAGES = 8  # messages looked back at for what the last one leaves out
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
    missing_arguments: MissingArguments | None = None


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
        on_thinking: OnText | None = None,
        output_schema: Mapping[str, Any] | None = None,
    ) -> ModelReply:
        """Answer from the conversation; the text is streamed in pieces."""
        # Hundreds of definitions would block the event loop.
        reply = await asyncio.to_thread(
            _build_reply, messages, instructions, tuple(tools), max_tokens, output_schema
        )
        if on_text is not None:
            for piece in split_text(reply.text):
                await on_text(piece)
        return reply


def split_text(text: str) -> Iterator[str]:
    """Yield a text in pieces that end between words."""
    piece = ""
    for word in re.findall(r"\s*\S+|\s+$", text):
        if piece and len(piece) + len(word) > CHUNK_LENGTH:
            yield piece
            piece = ""
        piece += word
    if piece:
        yield piece


def _build_offline_answer(
    messages: list[Message], instructions: str, tools: tuple[ToolSpec, ...]
) -> OfflineAnswer:
    last_turn_index = max(
        (
            index
            for index, other_message in enumerate(messages)
            if other_message["role"] == "assistant"
        ),
        default=-1,
    )
    new_messages = messages[last_turn_index + 1 :]
    user_text = "\n".join(message["text"] for message in new_messages if message["role"] == "user")
    results = [message for message in new_messages if message["role"] == "tool"]
    notices = replies.parse_notices(instructions)
    answer = OfflineAnswer()
    if user_text.strip():
        answer = _answer_user_text(user_text, messages[: last_turn_index + 1], instructions, tools)
    elif not results:
        answer.text = replies.render_introduction(tools, notices)
    if results:
        result_text = _render_result_reply(
            messages,
            last_turn_index,
            results,
            tools,
            [] if user_text else replies.filter_failures(notices),
        )
        answer.text = f"{result_text}\n\n{answer.text}".strip()
    return answer


def _render_result_reply(
    messages: Sequence[Message],
    last_turn_index: int,
    results: Sequence[Message],
    tools: Sequence[ToolSpec],
    notices: Sequence[str],
) -> str:
    parts = [replies.render_results(messages[last_turn_index]["calls"], results)]
    names = [tool.name for tool in tools]
    for result in results:
        close_names = find_close_names(result["name"], names) if result["is_error"] else []
        if close_names and result["name"] not in names:
            suggestions = " or ".join(f"`/{name}`" for name in close_names)
            parts.append(
                f"`{result['name']}` isn't a tool of this agent. Did you mean {suggestions}?"
            )
    parts.append(replies.render_unavailable(notices))
    has_earlier_results = any(message["role"] == "tool" for message in messages[:last_turn_index])
    parts.append("" if has_earlier_results else replies.FOOTNOTE)
    return "\n\n".join(part for part in parts if part)


def _answer_user_text(
    user_text: str,
    earlier_messages: Sequence[Message],
    instructions: str,
    tools: tuple[ToolSpec, ...],
) -> OfflineAnswer:
    """Answer a user's text: run typed commands, else find a matching tool."""
    notices = replies.parse_notices(instructions)
    try:
        commands = parse_commands(user_text, [tool.name for tool in tools])
    except CommandSyntaxError as error:
        return OfflineAnswer(text=f"{error}\n\nNothing was run.")
    context = _build_context(earlier_messages, instructions)
    if commands:
        return _run_commands(commands, tools, context, notices)
    previous_question = _find_missing_arguments(earlier_messages)
    if previous_question and CANCEL.fullmatch(user_text):
        return OfflineAnswer(text="All right, nothing was run.")
    is_greeting = GREETING.fullmatch(user_text)
    offline_plan = plan_message(
        user_text[:MAX_TEXT],
        ToolTermIndex(tools),
        context,
        None if is_greeting else previous_question,
    )
    if offline_plan.calls or offline_plan.incomplete_call:
        return _build_answer(offline_plan)
    if is_greeting and not offline_plan.suggested_tools:
        return OfflineAnswer(text=replies.render_introduction(tools, notices))
    return OfflineAnswer(text=replies.render_no_match(tools, offline_plan.suggested_tools, notices))


def _run_commands(
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
        elif command.is_known:
            command_answer = _build_answer(
                build_plan(fill_arguments(by_name[command.name], command.free_text, context))
            )
            if command_answer.missing_arguments is not None:
                return command_answer
            answer.calls += command_answer.calls
        elif command.name == "tools":
            answer.text = replies.render_tools(tools, command.free_text, limit=len(tools))
        else:
            answer.text = replies.render_introduction(tools, notices)
    return answer


def _build_answer(offline_plan: OfflinePlan) -> OfflineAnswer:
    question = offline_plan.incomplete_call
    if question is None:
        return OfflineAnswer(calls=list(offline_plan.calls))
    missing_arguments = MissingArguments(question.tool.name, question.arguments, question.missing)
    return OfflineAnswer(
        text=replies.render_question(question), missing_arguments=missing_arguments
    )


def _build_context(earlier_messages: Sequence[Message], instructions: str) -> MessageContext:
    user_texts = [
        user_message["text"][:MAX_TEXT]
        for user_message in reversed(earlier_messages)
        if user_message["role"] == "user"
    ]
    earlier_arguments: dict[str, Any] = {}
    recent_tools: frozenset[str] = frozenset()
    for message in earlier_messages:
        calls = message.get("calls") or ()
        for call in calls:
            earlier_arguments |= call["arguments"] or {}
        recent_tools = frozenset(call["name"] for call in calls) or recent_tools
    return MessageContext(
        instructions, tuple(user_texts[:MAX_EARLIER_MESSAGES]), earlier_arguments, recent_tools
    )


def _find_missing_arguments(earlier_messages: Sequence[Message]) -> MissingArguments | None:
    """Return the question of the last turn, if any."""
    stored_arguments = earlier_messages[-1].get("asked") if earlier_messages else None
    if not stored_arguments:
        return None
    return MissingArguments(
        stored_arguments["tool"], stored_arguments["arguments"], tuple(stored_arguments["missing"])
    )


def _build_reply(
    messages: Sequence[Message],
    instructions: str,
    tools: tuple[ToolSpec, ...],
    max_tokens: int | None = None,
    output_schema: Mapping[str, Any] | None = None,
) -> ModelReply:
    turn = get_next_turn(messages)
    answer = _build_offline_answer(order_messages(messages), instructions, tools)
    calls = tuple(
        ToolCall(index, name, arguments, json.dumps(arguments), build_call_id(turn, index))
        for index, (name, arguments) in enumerate(answer.calls)
    )
    extra: dict[str, Any] = {}
    if answer.missing_arguments is not None:
        extra["asked"] = {
            "tool": answer.missing_arguments.tool,
            "arguments": answer.missing_arguments.arguments,
            "missing": list(answer.missing_arguments.missing),
        }
    if output_schema and not calls:
        answer.text = render_output(output_schema, answer.text)
    finish: Finish = "tool_calls" if calls else "stop"
    text, output_tokens = answer.text, _count_answer_tokens(answer.text, calls)
    if max_tokens is not None and output_tokens > max_tokens:
        text, calls, finish = truncate_text(text, max_tokens), (), "length"
        output_tokens = _count_answer_tokens(text, calls)
    return ModelReply(
        text=text,
        calls=calls,
        usage=TokenUsage(estimate_tokens(messages, instructions, tools), output_tokens),
        finish=finish,
        message=build_assistant_message(turn, text, calls, **extra),
    )


def _count_answer_tokens(text: str, calls: Sequence[ToolCall]) -> int:
    return count_tokens(text) + sum(count_tokens(call.name + call.raw_arguments) for call in calls)
