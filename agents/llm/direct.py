"""Models at providers: OpenAI and what speaks alike, Anthropic, Google, Amazon, Azure.

The model library takes two seconds and fifty megabytes to import, so this module doesn't import
it: `wire` does, in a thread when the first request is made, so that the loop keeps ticking.
"""

import asyncio
import gc
import importlib
from collections.abc import Sequence
from types import ModuleType

from agents.llm.port import Endpoint, Message, ModelError, OnText, Reply, ToolSpec
from bonobot.lib.sayings import say

WIRE = "agents.llm.wire"

_loaded: dict[str, ModuleType] = {}


class DirectModel:
    """A model at a provider; implements `agents.llm.port.Model`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    async def request(
        self,
        messages: Sequence[Message],
        *,
        instructions: str = "",
        tools: Sequence[ToolSpec] = (),
        max_tokens: int | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Ask once, streaming when somebody listens. Raises ModelError."""
        wire = await _wire()
        try:
            async with asyncio.timeout(self.endpoint.timeout_s) as limit:
                reply: Reply = await wire.ask(
                    self.endpoint,
                    messages,
                    instructions=instructions,
                    tools=tools,
                    max_tokens=max_tokens,
                    on_text=on_text,
                )
                return reply
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ModelError(
                say(
                    "`{model}` didn't finish within {timeout_s:g} s.",
                    model=self.endpoint.model,
                    timeout_s=self.endpoint.timeout_s,
                ),
                code="model_timeout",
                remedy="Try again, or give the model endpoint a longer timeout.",
            ) from error


async def close() -> None:
    """Close the connections that were opened on this loop."""
    if WIRE in _loaded:
        await _loaded[WIRE].close()


async def _wire() -> ModuleType:
    return _loaded[WIRE] if WIRE in _loaded else await asyncio.to_thread(_load)


def _load() -> ModuleType:
    wire = _loaded[WIRE] = importlib.import_module(WIRE)
    gc.freeze()  # it stays, so nobody needs to look through it for garbage
    return wire
