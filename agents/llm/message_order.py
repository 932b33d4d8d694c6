"""Order a conversation's messages as providers accept them.

Providers reject a history where a call has no result or where other messages are in between. A
session can have such a history (after a cancellation, or with a message that arrived during a
call), so messages are reordered here for all models.
"""

from collections.abc import Iterator, Sequence

from agents.llm.interface import Message, build_tool_result, parse_call_index

UNANSWERED_TEXT = (
    "No result: the call was interrupted before it answered. It may or may not have run."
)


def get_next_turn(messages: Sequence[Message]) -> int:
    """Return the number of the next turn, counted from 1."""
    return 1 + max(
        (message["turn"] for message in messages if message["role"] == "assistant"), default=0
    )


def order_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with each round's results after its calls, in the order of the calls.

    A call without a result gets a placeholder. Results are matched by position and call index, not
    by turn number, which may differ in sessions with failed turns. Raises `ValueError` for a result
    without a call.
    """
    ordered_messages: list[Message] = []
    for head, tail in _iterate_rounds(messages):
        results = {
            parse_call_index(result["call_id"]): result
            for result in tail
            if result["role"] == "tool"
        }
        if head is not None:
            ordered_messages.append(head)
            ordered_messages.extend(_order_results(head["calls"], results))
        if results:
            raise ValueError(f"Results without a call before them: {sorted(results)}")
        ordered_messages.extend(message for message in tail if message["role"] == "user")
    return ordered_messages


def _order_results(calls: Sequence[Message], results: dict[int, Message]) -> Iterator[Message]:
    for index, call in enumerate(calls):
        if index in results:
            yield results.pop(index) | {"call_id": call["id"]}
        else:
            yield build_tool_result(call["id"], call["name"], UNANSWERED_TEXT, is_error=True)


def _iterate_rounds(messages: Sequence[Message]) -> Iterator[tuple[Message | None, list[Message]]]:
    """Yield each assistant message with those after it; first (None, the ones before any)."""
    head: Message | None = None
    tail: list[Message] = []
    for message in messages:
        if message["role"] == "assistant":
            yield head, tail
            head, tail = message, []
        else:
            tail.append(message)
    yield head, tail
