"""Guarded HTTP clients, and cancellation of requests in threads."""

import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from threading import Lock
from typing import Any

import httpx2

from agents.llm.interface import ModelEndpointConfig
from bonobot.core.http.egress import build_guarded_client

MAX_RESPONSE_SIZE = 16 * 1024 * 1024  # bytes; a streamed token costs some 250 on the wire
CONNECT_TIMEOUT_S = 30.0
# Concurrent requests to a model; each may take many seconds.
MAX_CONNECTIONS = 500


class RequestScope:
    """The futures that threads of one request wait for, canceled when the request ends."""

    def __init__(self) -> None:
        """Create an empty scope."""
        self._futures: set[Future[Any]] = set()
        self._closers: list[Callable[[], object]] = []
        self._is_over = False
        self._lock = Lock()
        # Whether the stream's last event arrived, such as `[DONE]`.
        self.is_stream_complete = False

    @contextmanager
    def track_future(self, future: Future[Any]) -> Iterator[None]:
        """Track a future during the block; raises `CancelledError` if the request is over."""
        with self._lock:
            if not self._is_over:
                self._futures.add(future)
        if self._is_over:
            future.cancel()
            raise CancelledError
        try:
            yield
        finally:
            with self._lock:
                self._futures.discard(future)

    def add_closer(self, closer: Callable[[], object]) -> None:
        """Add a function to call when the request ends; call it now if it is over."""
        with self._lock:
            if not self._is_over:
                self._closers.append(closer)
        if self._is_over:
            closer()

    def close(self) -> None:
        """Cancel all tracked futures, and any that are tracked later."""
        with self._lock:
            self._is_over = True
            futures, closers = list(self._futures), self._closers
        for future in futures:
            future.cancel()
        for closer in closers:
            closer()


_current_scope: contextvars.ContextVar[RequestScope | None] = contextvars.ContextVar(
    "under_way", default=None
)


@contextmanager
def open_request_scope() -> Iterator[RequestScope]:
    """Yield the request's scope; cancel its pending futures at the end of the block."""
    request_scope = RequestScope()
    token = _current_scope.set(request_scope)
    try:
        yield request_scope
    finally:
        _current_scope.reset(token)
        request_scope.close()


def find_request_scope() -> RequestScope | None:
    """Return the current request's scope; None outside of a request."""
    return _current_scope.get()


def mark_stream_complete() -> None:
    """Record that the current request's stream ended as its API documents it."""
    if (request_scope := find_request_scope()) is not None:
        request_scope.is_stream_complete = True


def build_client(endpoint: ModelEndpointConfig) -> httpx2.AsyncClient:
    return build_guarded_client(
        allow_private=endpoint.allow_private,
        read_s=endpoint.timeout_s,
        max_body=MAX_RESPONSE_SIZE,
        max_connections=MAX_CONNECTIONS,
    )


def build_timeout(endpoint: ModelEndpointConfig) -> httpx2.Timeout:
    return httpx2.Timeout(endpoint.timeout_s, connect=min(CONNECT_TIMEOUT_S, endpoint.timeout_s))
