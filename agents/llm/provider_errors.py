"""Convert errors of model libraries to `ModelError`."""

import logging
import re
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

from agents.llm.interface import ModelEndpointConfig, ModelError
from agents.llm.provider_kinds import PROVIDER_KINDS
from bonobot.core.http.connection_errors import find_failure
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.text.masking import mask_text
from bonobot.core.text.untrusted_text import make_visible

T = TypeVar("T", bound=BaseException)

logger = logging.getLogger(__name__)

UNREACHABLE_REMEDY = format_message(
    "Check the model endpoint's URL and whether the server is running."
)
PRIVATE_ADDRESS_REMEDY = (
    "A platform administrator can allow private addresses for this model endpoint."
)
MAX_QUOTE_LENGTH = 300  # maximum length of a quoted provider message, in characters

# What providers say if an account has no credit, where the library sees only another refusal.
_NO_CREDIT = re.compile(
    r"(?:credit|account) balance is too low|billing_hard_limit"
    r"|insufficient[ _](?:account[ _])?(?:balance|credit|fund|quota)",
    re.IGNORECASE,
)

# Raised by libraries for malformed answers.
MALFORMED_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError, ValidationError)
PROVIDER_ERRORS = (
    AgentRunError,
    OpenAIError,
    httpx2.HTTPError,
    httpx2.StreamError,
    Problem,
    UserError,
)
_TOO_LONG_REMEDY = format_message(
    "Start a new session, select fewer tools for the agent, or choose a larger model."
)
_NOT_FOUND_REMEDY = format_message(
    "Check the endpoint's model name, and that its URL ends as the provider documents it "
    "(often `/v1`)."
)


@contextmanager
def convert_provider_errors(
    endpoint: ModelEndpointConfig, *, streaming: bool = False
) -> Iterator[None]:
    """Convert errors of the model library to `ModelError`; only its code may run inside."""
    try:
        yield
    except ModelError:
        raise
    except (*PROVIDER_ERRORS, TimeoutError) as error:
        raise _convert_error(error, endpoint, streaming) from error
    except MALFORMED_ERRORS as error:
        raise _build_malformed_error(endpoint, "") from error
    except Exception as error:
        # Assertions and others that the library doesn't document.
        logger.warning("the library of a model endpoint failed", exc_info=True)
        detail = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise _build_malformed_error(endpoint, detail) from error


def build_truncated_error(endpoint: ModelEndpointConfig, reason: str = "") -> ModelError:
    """Return the error for a stream that ended early."""
    return ModelError(
        format_message(
            "The response from {endpoint} was cut off.{words}",
            endpoint=_format_endpoint(endpoint),
            words=reason,
        ),
        code="model_bad_answer",
        remedy="Try again.",
        retryable=True,
    )


def _convert_error(
    error: BaseException, endpoint: ModelEndpointConfig, streaming: bool
) -> ModelError:
    problem = _find_cause(error, Problem)
    if problem is not None:  # egress refused the address, or the answer was too large
        remedy = PRIVATE_ADDRESS_REMEDY if problem.code == "private_address" else problem.remedy
        return ModelError(str(problem), code=problem.code, remedy=remedy, retryable=False)
    if isinstance(error, ModelHTTPError):
        return _build_reported_error(error, endpoint)
    timeout_errors = (ModelTimeoutError, httpx2.TimeoutException, TimeoutError)
    if isinstance(error, timeout_errors) or _find_cause(error, httpx2.TimeoutException):
        return ModelError(
            format_message(
                "{endpoint} didn't respond in time.", endpoint=_format_endpoint(endpoint)
            ),
            code="model_timeout",
            remedy="Try again, or set a longer timeout on the model endpoint.",
        )
    connection_errors = (ModelConnectionError, httpx2.HTTPError, httpx2.StreamError)
    if streaming and (
        isinstance(error, connection_errors) or _find_cause(error, httpx2.HTTPError) is not None
    ):
        return build_truncated_error(endpoint, _format_reason(_find_root_cause(error), endpoint))
    if isinstance(error, ModelConnectionError | httpx2.TransportError):
        failure = find_failure(error)
        return ModelError(
            format_message(
                "{endpoint} can't be reached: {why}.",
                endpoint=_format_endpoint(endpoint),
                why=failure.reason,
            )
            if failure
            else format_message(
                "{endpoint} can't be reached.{error}",
                endpoint=_format_endpoint(endpoint),
                error=_format_reason(_find_root_cause(error), endpoint),
            ),
            code="model_unreachable",
            remedy=failure.remedy if failure else UNREACHABLE_REMEDY,
        )
    if isinstance(error, ModelAPIError) and _is_reported(error):
        return _build_reported_error(error, endpoint)
    # A validation report describes the library's types, not the answer.
    return _build_malformed_error(
        endpoint, "" if isinstance(error, UnexpectedModelBehavior) else _extract_message(error)
    )


def _is_reported(error: ModelAPIError) -> bool:
    """Return whether the provider reported the error itself, in a stream or a response."""
    return error.in_stream or bool(error.provider_error_code) or type(error) is not ModelAPIError


def _build_reported_error(error: ModelAPIError, endpoint: ModelEndpointConfig) -> ModelError:
    code, description, remedy, retryable = _classify_reported_error(error)
    names = {
        "endpoint": _format_endpoint(endpoint),
        "what": description,
        "error": _format_reason(error, endpoint),
    }
    return ModelError(
        format_message(
            "{endpoint} {what} (HTTP {status_code}).{error}", status_code=error.status_code, **names
        )
        if isinstance(error, ModelHTTPError)
        else format_message("{endpoint} {what}.{error}", **names),
        code=code,
        remedy=remedy,
        retry_after=error.retry_after,
        retryable=retryable,
    )


def _has_no_credit(error: ModelAPIError) -> bool:
    if isinstance(error, ModelQuotaExceededError):
        return True
    if isinstance(error, ModelHTTPError) and not 400 <= error.status_code < 500:
        return False
    codes = (error.provider_error_code, error.provider_error_type, _extract_message(error))
    return any(code is not None and _NO_CREDIT.search(code) for code in codes)


def _classify_reported_error(error: ModelAPIError) -> tuple[str, str, str, bool]:
    """Return code, description, remedy, and whether a retry may help."""
    if _has_no_credit(error):
        return (
            "model_no_credit",
            format_message("has no credit left"),
            format_message("Add credit to the provider account, or set a fallback model."),
            False,
        )
    match error:
        case ModelRateLimitError():
            return (
                "model_rate_limited",
                format_message("is rate limiting requests"),
                format_message("Wait a moment, then try again."),
                True,
            )
        case ModelAuthenticationError():
            return (
                "model_auth",
                format_message("rejected the credentials"),
                format_message("Set the endpoint's API key."),
                False,
            )
        case ModelContextWindowExceededError():
            description = format_message("can't process a conversation of this length")
            return "model_context_exceeded", description, _TOO_LONG_REMEDY, False
        case ModelNotFoundError():
            return (
                "model_error",
                format_message("doesn't know this model or path"),
                _NOT_FOUND_REMEDY,
                False,
            )
        case ModelUnavailableError() | ModelServerError():
            return "model_error", format_message("failed"), format_message("Try again."), True
        case ModelRequestRejectedError():
            return (
                "model_error",
                format_message("rejected the request"),
                format_message("Read the error message, then correct the request."),
                False,
            )
        case ModelHTTPError():
            return _classify_status(error.status_code)
        case _:
            return "provider_error", format_message("failed"), format_message("Try again."), True


def _classify_status(status: int) -> tuple[str, str, str, bool]:
    is_retryable = status >= 500 or status in (408, 409, 425)
    remedy = (
        format_message("Try again.")
        if is_retryable
        else format_message("Read the error message, then correct the request.")
    )
    return "model_error", format_message("failed"), remedy, is_retryable


def _build_malformed_error(endpoint: ModelEndpointConfig, detail: str) -> ModelError:
    return ModelError(
        format_message(
            "{endpoint} returned a response that isn't valid for {api}.",
            endpoint=_format_endpoint(endpoint),
            api=PROVIDER_KINDS[endpoint.kind].api_name,
        )
        + _format_quote(detail, endpoint),
        code="provider_error",
        remedy=format_message(
            "Try again. If it fails again, check the endpoint's kind and URL: it must support "
            "{api}.",
            api=PROVIDER_KINDS[endpoint.kind].api_name,
        ),
    )


def _format_endpoint(endpoint: ModelEndpointConfig) -> str:
    host = urlsplit(endpoint.url).netloc.rpartition("@")[2]
    return f"`{make_visible(endpoint.model, 100)}` at {make_visible(host, 200)}"


def _format_reason(error: BaseException, endpoint: ModelEndpointConfig) -> str:
    return _format_quote(_extract_message(error), endpoint)


def _format_quote(detail: str, endpoint: ModelEndpointConfig) -> str:
    """Return a provider's message as a sentence to append: masked, visible and truncated."""
    secrets = (endpoint.api_key,) if endpoint.api_key else ()
    text = make_visible(mask_text(" ".join(detail.split()), secrets=secrets), MAX_QUOTE_LENGTH)
    return f" Response: {text}" if text else ""


def _extract_message(error: BaseException) -> str:
    body = error.body if isinstance(error, ModelAPIError) else None
    if isinstance(body, dict):
        error_body = body.get("error") or body.get("Error") or body
        message = error_body
        if isinstance(error_body, dict):
            message = error_body.get("message") or error_body.get("Message")
        return message if isinstance(message, str) else ""
    if isinstance(body, str):
        return body
    return "" if isinstance(error, ModelHTTPError) else str(error)


def _find_root_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _find_cause(error: BaseException, kind: type[T]) -> T | None:
    """Find a cause of a type; ignore `__context__`, which may belong to another request."""
    current: BaseException | None = error
    while current is not None and not isinstance(current, kind):
        current = current.__cause__
    return current
