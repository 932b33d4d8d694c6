"""Notices on answers that a limit or a content filter ended early."""

from agents.llm import interface as llm_interface

ANSWER_CUT_CODE, ANSWER_FILTERED_CODE = "answer_cut", "answer_filtered"
ANSWER_NOTICE_CODES = (ANSWER_CUT_CODE, ANSWER_FILTERED_CODE)


def build_answer_notice(
    reply: llm_interface.ModelReply, max_tokens: int | None
) -> dict[str, str] | None:
    """Return the notice on an incomplete answer; None for a complete one."""
    if reply.finish == "content_filter":
        return {
            "code": ANSWER_FILTERED_CODE,
            "text": "The answer is incomplete: the provider's content filter stopped it.",
        }
    if reply.limit:
        return {
            "code": ANSWER_CUT_CODE,
            "text": f"The answer was cut off at {reply.limit}, the limit for one answer.",
        }
    if reply.finish != "length":
        return None
    limit = f"at {max_tokens:,} tokens" if max_tokens else "at the model's own limit"
    return {
        "code": ANSWER_CUT_CODE,
        "text": f"The answer was cut off {limit}. The model endpoint "
        "sets the maximum length, and the remaining budget can reduce it.",
    }
