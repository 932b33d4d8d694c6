"""A conversation in our own form, made fit to be sent: each call answered once, right after it.

Providers refuse a history where a call has no result or where something stands between the two.
A session can honestly hold such a history (cancelled in the middle, a message that arrived while
tools ran), so it is put in order here, for every model alike.
"""

from collections.abc import Iterator, Sequence

from agents.llm.port import Message, call_index, tool_result

UNANSWERED = "No result: the call was interrupted before it answered. It may or may not have run."


def next_turn(messages: Sequence[Message]) -> int:
    """Return the number of the turn that answers these messages, counted from 1."""
    return 1 + max((m["turn"] for m in messages if m["role"] == "assistant"), default=0)


def in_order(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with each call's result right behind it, in the order of the calls.

    A call without a result gets one that says so. Which turn a result belongs to is where it
    stands, so it is found by its index even where a session counts turns of its own (those that
    failed, say). Raises ValueError for a result whose call isn't there: whoever made the history
    lost something.
    """
    ordered: list[Message] = []
    for head, tail in _rounds(messages):
        results = {call_index(m["call_id"]): m for m in tail if m["role"] == "tool"}
        if head is not None:
            ordered.append(head)
            ordered.extend(_answers(head["calls"], results))
        if results:
            raise ValueError(f"Results without a call before them: {sorted(results)}")
        ordered.extend(message for message in tail if message["role"] == "user")
    return ordered


def _answers(calls: Sequence[Message], results: dict[int, Message]) -> Iterator[Message]:
    for index, call in enumerate(calls):
        if index in results:
            yield results.pop(index) | {"call_id": call["id"]}
        else:
            yield tool_result(call["id"], call["name"], UNANSWERED, is_error=True)


def _rounds(messages: Sequence[Message]) -> Iterator[tuple[Message | None, list[Message]]]:
    """Yield each assistant message with what followed it; first what came before any."""
    head: Message | None = None
    tail: list[Message] = []
    for message in messages:
        if message["role"] == "assistant":
            yield head, tail
            head, tail = message, []
        else:
            tail.append(message)
    yield head, tail
