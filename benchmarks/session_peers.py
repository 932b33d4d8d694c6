"""The model and the MCP server of sessions that are measured; needs no Django.

    python -m benchmarks.session_peers MODEL_PORT SERVER_PORT

Both answer immediately. The model asks for two calls at once in its first answer.
"""

import asyncio
import json
import sys
from typing import Any

from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest

WORDS = "It is warm in Ulm today. " * 8
TICKET = {
    "name": "look_up",
    "description": "Look something up.",
    "inputSchema": {
        "type": "object",
        "properties": {"text": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}},
        "required": ["text"],
    },
}


def serve_tool(asked: RecordedRequest) -> bytes:
    if asked.method == "server/discover":
        return raw_http_server.discovery(asked)
    if asked.method == "tools/list":
        return raw_http_server.result(asked, {"tools": [TICKET]})
    return raw_http_server.text(asked, WORDS)


def stream_reply(asked: RecordedRequest, turns_with_calls: int = 0) -> bytes:
    """Return two calls for the first turns, and then an answer, as OpenAI streams them."""
    answered = sum(item["role"] == "assistant" for item in asked.message["messages"])
    if answered < turns_with_calls:
        calls = [build_call(index, answered) for index in range(2)]
        deltas: list[dict[str, Any]] = [{"tool_calls": [call]} for call in calls]
        finish = "tool_calls"
    else:
        deltas, finish = (
            [{"role": "assistant", "content": field} for field in WORDS.split()],
            "stop",
        )
    usage = {"prompt_tokens": 400, "completion_tokens": 40, "total_tokens": 440}
    chunks = [
        *(build_chunk(delta) for delta in deltas),
        build_chunk({}, finish),
        build_chunk(None, usage=usage),
    ]
    return raw_http_server.response(
        200, b"".join(chunks) + b"data: [DONE]\n\n", "text/event-stream"
    )


def build_call(index: int, turn: int) -> dict[str, Any]:
    arguments = json.dumps({"text": f"weather of turn {turn}, place {index}", "limit": 5})
    function = {"name": "mcp_web_look_up", "arguments": arguments}
    return {"index": index, "id": f"call_{index}", "type": "function", "function": function}


def build_chunk(
    delta: dict[str, Any] | None, finish: str | None = None, usage: Any = None
) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    complete = {
        **{"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "slow-1"},
        "choices": choices,
        "usage": usage,
    }
    return b"data: " + json.dumps(complete).encode() + b"\n\n"


async def run_peers(model_port: int, server_port: int) -> None:
    """Answer until the process ends."""
    model = RawHttp(lambda asked: stream_reply(asked, 1), port=model_port)
    server = RawHttp(serve_tool, port=server_port)
    async with model.listening(), server.listening():
        while True:
            await asyncio.sleep(1)
            model.asked.clear()
            server.asked.clear()


if __name__ == "__main__":
    asyncio.run(run_peers(int(sys.argv[1]), int(sys.argv[2])))
