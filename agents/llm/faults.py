"""Faults of model providers as ours: one code each, what was said, and what to do about it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2
from openai import OpenAIError
from pydantic import ValidationError
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    UnexpectedModelBehavior,
    UserError,
)

from agents.llm.port import Endpoint, ModelError
from bonobot.lib.failures import failure_of
from bonobot.lib.masking import mask_text
from bonobot.lib.problems import Problem
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible

T = TypeVar("T", bound=BaseException)

# What is spoken at each kind of endpoint, and what it takes for a key.
SPOKEN = {
    "openai": "an OpenAI-compatible API (its URL often ends in `/v1`)",
    "responses": "OpenAI's Responses API (its URL often ends in `/v1`)",
    "azure": "Azure OpenAI",
    "anthropic": "Anthropic's Messages API",
    "google": "the Gemini API",
    "vertex": "Vertex AI",
    "bedrock": "Amazon Bedrock",
}
REMEDY = say("Check the model endpoint's URL, and that the server runs.")
PRIVATE = "A platform administrator can allow private addresses for this model endpoint."
QUOTED = 300  # characters of a provider's own words that are shown

# What a library raises on an answer of no known shape; `ask` runs nothing but the library here.
SHAPE_FAULTS = (AttributeError, IndexError, KeyError, TypeError, ValueError, ValidationError)
FAULTS = (AgentRunError, OpenAIError, httpx2.HTTPError, httpx2.StreamError, Problem, UserError)


@contextmanager
def faults_as_ours(endpoint: Endpoint, *, streaming: bool = False) -> Iterator[None]:
    """Turn whatever the model library raises into ModelError."""
    try:
        yield
    except ModelError:
        raise
    except FAULTS as error:
        raise _ours(error, endpoint, streaming) from error
    except SHAPE_FAULTS as error:
        raise _misshapen(endpoint, "") from error


def cut_off(endpoint: Endpoint, words: str = "") -> ModelError:
    """Return the fault of a stream that ended in the middle."""
    return ModelError(
        say(
            "The answer of {endpoint} broke off in the middle.{words}",
            endpoint=_at(endpoint),
            words=words,
        ),
        code="model_bad_answer",
        remedy="Try again.",
        retryable=True,
    )


def _ours(error: BaseException, endpoint: Endpoint, streaming: bool) -> ModelError:
    problem = _caused_by(error, Problem)
    if problem is not None:  # egress refused the address, or the answer was too large
        remedy = PRIVATE if problem.code == "private_address" else problem.remedy
        return ModelError(str(problem), code=problem.code, remedy=remedy, retryable=False)
    if isinstance(error, ModelHTTPError):
        return _refused(error, endpoint)
    timed_out = (ModelTimeoutError, httpx2.TimeoutException)
    if isinstance(error, timed_out) or _caused_by(error, httpx2.TimeoutException):
        return ModelError(
            say("{endpoint} didn't answer in time.", endpoint=_at(endpoint)),
            code="model_timeout",
            remedy="Try again, or give the model endpoint a longer timeout.",
        )
    if streaming:
        return cut_off(endpoint, _words(_root(error), endpoint))
    if isinstance(error, ModelConnectionError | httpx2.TransportError):
        known = failure_of(error)
        return ModelError(
            say("{endpoint} can't be reached: {why}.", endpoint=_at(endpoint), why=known.why)
            if known
            else say(
                "{endpoint} can't be reached.{error}",
                endpoint=_at(endpoint),
                error=_words(_root(error), endpoint),
            ),
            code="model_unreachable",
            remedy=known.remedy if known else REMEDY,
        )
    # A validation report says more about our library than about the answer.
    return _misshapen(endpoint, "" if isinstance(error, UnexpectedModelBehavior) else _said(error))


def _refused(error: ModelHTTPError, endpoint: Endpoint) -> ModelError:
    code, what, remedy, retryable = _reading(error)
    return ModelError(
        say(
            "{endpoint} {what} (HTTP {status_code}).{error}",
            endpoint=_at(endpoint),
            what=what,
            status_code=error.status_code,
            error=_words(error, endpoint),
        ),
        code=code,
        remedy=remedy,
        retry_after=error.retry_after,
        retryable=retryable,
    )


_LARGER = say("Begin a new session, give the agent fewer tools, or choose a larger model.")
_OTHER_PATH = say(
    "Check the endpoint's model name, and that its URL ends as the provider says (often `/v1`)."
)


def _reading(error: ModelHTTPError) -> tuple[str, str, str, bool]:
    """Return code, what happened, what to do, and whether asking again may help."""
    match error:
        case ModelQuotaExceededError():
            return (
                "model_error",
                say("has no credit left"),
                say("Top up the provider's account."),
                False,
            )
        case ModelRateLimitError():
            return "model_rate_limited", say("asks to slow down"), say("Wait and try again."), True
        case ModelAuthenticationError():
            return (
                "model_auth",
                say("refused the credentials"),
                say("Set the endpoint's API key."),
                False,
            )
        case ModelContextWindowExceededError():
            too_long = say("can't take so long a conversation")
            return "model_context_exceeded", too_long, _LARGER, False
        case ModelNotFoundError():
            return "model_error", say("doesn't know this model or path"), _OTHER_PATH, False
        case ModelUnavailableError() | ModelServerError():
            return "model_error", say("failed"), say("Try again."), True
        case ModelRequestRejectedError():
            return "model_error", say("rejected the request"), say("Read what it says."), False
        case _:
            again = error.status_code >= 500 or error.status_code in (408, 409, 425)
            remedy = say("Try again.") if again else say("Read what it says.")
            return "model_error", say("failed"), remedy, again


def _misshapen(endpoint: Endpoint, said: str) -> ModelError:
    return ModelError(
        say(
            "{endpoint} answered something that isn't an answer of {spoken}.",
            endpoint=_at(endpoint),
            spoken=SPOKEN[endpoint.kind],
        )
        + _quote(said, endpoint),
        code="model_bad_answer",
        remedy=say(
            "Check the endpoint's kind and URL: it has to speak {spoken}.",
            spoken=SPOKEN[endpoint.kind],
        ),
        retryable=False,
    )


def _at(endpoint: Endpoint) -> str:
    host = urlsplit(endpoint.url).netloc.rpartition("@")[2]
    return f"`{visible(endpoint.model, 100)}` at {visible(host, 200)}"


def _words(error: BaseException, endpoint: Endpoint) -> str:
    return _quote(_said(error), endpoint)


def _quote(said: str, endpoint: Endpoint) -> str:
    """Return a provider's words as a sentence to append: masked, harmless, short."""
    secrets = (endpoint.api_key,) if endpoint.api_key else ()
    text = visible(mask_text(" ".join(said.split()), secrets=secrets), QUOTED)
    return f" It says: {text}" if text else ""


def _said(error: BaseException) -> str:
    body = error.body if isinstance(error, ModelAPIError) else None
    if isinstance(body, dict):
        inner = body.get("error") or body.get("Error") or body
        message = inner
        if isinstance(inner, dict):
            message = inner.get("message") or inner.get("Message")
        return message if isinstance(message, str) else ""
    if isinstance(body, str):
        return body
    return "" if isinstance(error, ModelHTTPError) else str(error)


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _caused_by(error: BaseException, kind: type[T]) -> T | None:
    """Look at what it was raised from; never at `__context__`, which may be another request."""
    current: BaseException | None = error
    while current is not None and not isinstance(current, kind):
        current = current.__cause__
    return current
