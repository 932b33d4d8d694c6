"""Notices on answers that a limit or a content filter ended early."""

from agents.llm import interface as llm_interface
from bonobot.core.i18n.messages import format_message

ANSWER_CUT_CODE, ANSWER_FILTERED_CODE = "answer_cut", "answer_filtered"
ANSWER_NOTICE_CODES = (ANSWER_CUT_CODE, ANSWER_FILTERED_CODE)


def build_answer_notice(
    reply: llm_interface.ModelReply, max_tokens: int | None
) -> dict[str, str] | None:
    """Return the notice on an incomplete answer; None for a complete one."""
    if reply.finish == "content_filter":
        return {
            "code": ANSWER_FILTERED_CODE,
            "text": format_message(
                "The answer is incomplete: the provider's content filter stopped it."
            ),
        }
    if reply.limit:
        return {
            "code": ANSWER_CUT_CODE,
            "text": format_message(
                "The answer was cut off at {limit}, the limit for one answer.", limit=reply.limit
            ),
        }
    if reply.finish != "length":
        return None
    cut = format_message("The answer was cut off at the model's own limit.")
    if max_tokens:
        cut = format_message(
            "The answer was cut off at {max_tokens:,} tokens.", max_tokens=max_tokens
        )
    cause = format_message(
        "The model endpoint sets the maximum length, and the remaining budget can reduce it."
    )
    return {"code": ANSWER_CUT_CODE, "text": f"{cut} {cause}"}
