"""Prometheus metrics of a process.

Names begin with `bonobot_`. Label values are bounded: never an argument, a name given by people or
servers, or an id. Invalid codes, and codes beyond the maximum, count as `other`.
"""

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

registry = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=registry)

MAX_CODES = 300
DURATION_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
)
LAG_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

_counter: Callable[..., Counter] = partial(Counter, registry=registry)
_histogram: Callable[..., Histogram] = partial(Histogram, registry=registry)

calls = _counter(
    "bonobot_calls_total",
    "Calls that were admitted and have ended. kind: call, model (a turn of an agent's model), bot "
    "(of the gateway's own tools), trigger (a workflow started by a webhook).",
    ("kind", "outcome", "code"),
)
call_seconds = _histogram(
    "bonobot_call_seconds",
    "Duration of calls from their admission, in seconds.",
    ("kind",),
    buckets=DURATION_BUCKETS,
)
refusals = _counter("bonobot_refusals_total", "Refused calls by code.", ("event", "code"))
tokens = _counter("bonobot_model_tokens_total", "Tokens of model requests.", ("direction",))
cost = _counter("bonobot_cost_microusd_total", "Cost of calls in micro-dollars.", ("kind",))
admission_seconds = _histogram(
    "bonobot_admission_seconds",
    "Time that calls wait for their audit entry, in seconds.",
    buckets=DURATION_BUCKETS,
)
ledger_failures = _counter(
    "bonobot_ledger_troubles_total", "Failed attempts of the ledger to reach its database."
)
loop_lag = _histogram(
    "bonobot_loop_lag_seconds",
    "Delay of the event loop in seconds, measured once a second.",
    buckets=LAG_BUCKETS,
)
background_work = Gauge(
    "bonobot_lane",
    "Background work on this process's event loop: running or waiting.",
    ("lane", "state"),
    registry=registry,
)
requests = _counter(
    "bonobot_http_requests_total",
    "HTTP requests by part of the site.",
    ("area", "status"),
)
request_seconds = _histogram(
    "bonobot_http_request_seconds",
    "Time until the response starts, in seconds.",
    ("area",),
    buckets=DURATION_BUCKETS,
)

_CODE = re.compile(r"[a-z][a-z0-9_]{0,47}", re.ASCII)
_codes: set[str] = set()
_labeled_metrics: dict[tuple[Any, ...], Any] = {}


def bound_label_value(code: str) -> str:
    """Return a code as a label value, or `other`."""
    if code in _codes or not code:
        return code
    if len(_codes) >= MAX_CODES or not _CODE.fullmatch(code):
        return "other"
    _codes.add(code)
    return code


def get_labeled_metric(metric: Any, *values: str) -> Any:
    key = (metric, *values)
    labeled_metric = _labeled_metrics.get(key)
    if labeled_metric is None:
        labeled_metric = _labeled_metrics[key] = metric.labels(*values)
    return labeled_metric


@lru_cache(maxsize=1024)
def _get_call_metrics(kind: str, outcome: str, code: str) -> tuple[Any, Any]:
    """Return the count and the duration of calls with this outcome."""
    count = get_labeled_metric(calls, kind, outcome, bound_label_value(code))
    return count, get_labeled_metric(call_seconds, kind)


def observe_call(
    kind: str, outcome: str, code: str, duration_ms: int, cost_microusd: int, *model_tokens: int
) -> None:
    """Count a finished call; `model_tokens` are a model's input and output tokens."""
    count, seconds = _get_call_metrics(kind, outcome, code)
    count.inc()
    seconds.observe(duration_ms / 1000)
    if cost_microusd:
        get_labeled_metric(cost, kind).inc(cost_microusd)
    for direction, amount in zip(("input", "output"), model_tokens, strict=False):
        if amount:
            get_labeled_metric(tokens, direction).inc(amount)


def observe_refusal(event: str, code: str) -> None:
    """Count a refused call."""
    get_labeled_metric(refusals, bound_label_value(event), bound_label_value(code)).inc()


def observe_request(area: str, status: int, seconds: float) -> None:
    """Count a request when its response starts."""
    get_labeled_metric(requests, area, str(status)).inc()
    get_labeled_metric(request_seconds, area).observe(seconds)
