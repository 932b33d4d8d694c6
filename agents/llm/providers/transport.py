"""Guarded HTTP client; cancel requests in threads."""

import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from threading import Lock
from typing import Any

import httpx2

from agents.llm.interface import ModelEndpointConfig
from bonobot.core.http.egress import build_guarded_client


class RequestScope:
    """What the threads of one request wait for; once it is over they wait for nothing more."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._futures: set[Future[Any]] = set()
        self._closers: list[Callable[[], object]] = []
        self._is_over = False
        self._lock = Lock()

    @contextmanager
    def waiting(self, future: Future[Any]) -> Iterator[None]:
        """Note what a thread waits for; raises `CancelledError` where the request is over."""
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

    def at_end(self, closer: Callable[[], object]) -> None:
        """Have a function called when the request is over; at once where it is."""
        with self._lock:
            if not self._is_over:
                self._closers.append(closer)
        if self._is_over:
            closer()

    def end(self) -> None:
        """Cancel what is under way, and what a thread that is just between two waits begins."""
        with self._lock:
            self._is_over = True
            futures, closers = list(self._futures), self._closers
        for future in futures:
            future.cancel()
        for closer in closers:
            closer()


_under_way: contextvars.ContextVar[RequestScope | None] = contextvars.ContextVar(
    "under_way", default=None
)


@contextmanager
def cancel_on_exit() -> Iterator[None]:
    """Cancel what is still under way at the end of the block."""
    mine = RequestScope()
    token = _under_way.set(mine)
    try:
        yield
    finally:
        _under_way.reset(token)
        mine.end()


def find_request_scope() -> RequestScope | None:
    """Return where to note what this request waits for; None outside of one."""
    return _under_way.get()


MAX_ANSWER = 16 * 1024 * 1024  # bytes; a streamed token costs some 250 on the wire
CONNECT_S = 30.0
# Requests to a model under way at once: each waits for seconds, and its session with it.
MAX_CONNECTIONS = 500


def build_client(endpoint: ModelEndpointConfig) -> httpx2.AsyncClient:
    """Return a guarded client for an endpoint."""
    return build_guarded_client(
        allow_private=endpoint.allow_private,
        read_s=endpoint.timeout_s,
        max_body=MAX_ANSWER,
        max_connections=MAX_CONNECTIONS,
    )


def build_timeout(endpoint: ModelEndpointConfig) -> httpx2.Timeout:
    """Return how long the parts of a request may take."""
    return httpx2.Timeout(endpoint.timeout_s, connect=min(CONNECT_S, endpoint.timeout_s))
