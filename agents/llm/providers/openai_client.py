"""OpenAI's client without what a long conversation and a long answer make dear in it.

Found by measuring (`benchmarks/bench_sessions.py`): the client walks through every message by every
type that one may have to rename members that chat completions don't rename, and builds each piece
of a stream member by member, however many have come. What goes out and what comes back are the
same.
"""

from functools import cached_property
from typing import Any, TypeVar, cast

import httpx2
from openai import AsyncAzureOpenAI, AsyncOpenAI
from openai._base_client import make_request_options
from openai._utils import is_given
from openai.resources.chat import AsyncChat, AsyncCompletions
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import ValidationError

from agents.llm.providers.openai_stream import ChunkStream

T = TypeVar("T")

_OF_THE_REQUEST = ("extra_headers", "extra_query", "extra_body", "timeout")


class _Completions(AsyncCompletions):
    # The library has one signature for each form of the answer; here all are passed on.
    async def create(self, **asked: Any) -> Any:
        """Ask; what is said goes out as it is given."""
        said = {name: value for name, value in asked.items() if is_given(value)}
        options = make_request_options(
            **{name: said.pop(name) for name in _OF_THE_REQUEST if name in said},
            security={"bearer_auth": True},
        )
        return await self._post(
            "/chat/completions",
            body=said,
            options=options,
            cast_to=ChatCompletion,
            stream=said.get("stream", False),
            stream_cls=ChunkStream,
        )


class _Chat(AsyncChat):
    @cached_property
    def completions(self) -> _Completions:
        return _Completions(self._client)


class _Quick(AsyncOpenAI):
    @cached_property
    def chat(self) -> _Chat:
        return _Chat(self)

    # Private, so an upgrade may lose it: then pieces are built the slow way, and nothing breaks.
    def _process_response_data(
        self, *, data: object, cast_to: type[T], response: httpx2.Response
    ) -> T:
        if cast_to is ChatCompletionChunk:
            try:
                return cast(T, ChatCompletionChunk.model_validate(data))
            except ValidationError:
                pass  # a provider with words of its own, which the library takes as they come
        return super()._process_response_data(data=data, cast_to=cast_to, response=response)


class OpenAIClient(_Quick):
    """A client of OpenAI and of what speaks alike."""


class AzureClient(_Quick, AsyncAzureOpenAI):
    """A client of Azure's deployments by dated version."""
