"""Prices and context windows of models.

An endpoint's own price is used first, then the published prices bundled with `genai_prices`, looked
up by the provider's URL (a local server's `gpt-4o` isn't OpenAI's). Otherwise the price is None
(unknown), which a cost budget must refuse.
"""

from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

from agents.llm.interface import ModelEndpointConfig, TokenUsage

MILLION = 1_000_000


def calculate_price(endpoint: ModelEndpointConfig, usage: TokenUsage | None) -> int | None:
    """Return the price in micro-dollars, rounded up; None if unknown."""
    if endpoint.kind == "offline":
        return 0
    if usage is None:
        return None
    if endpoint.input_price is not None and endpoint.output_price is not None:
        cost = usage.input_tokens * endpoint.input_price
        cost += usage.output_tokens * endpoint.output_price
        return -(-cost // MILLION)
    return _find_published_price(endpoint, usage)


def _find_published_price(endpoint: ModelEndpointConfig, usage: TokenUsage) -> int | None:
    # Imported late: the tables take 0.2 s to load.
    from genai_prices import Usage as Priced
    from genai_prices import calc_price

    library_usage = Priced(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        price = calc_price(library_usage, endpoint.model, provider_api_url=endpoint.url)
    except (LookupError, ValueError):
        return None
    micro_dollars: Decimal = price.total_price * MILLION
    return int(micro_dollars.to_integral_value(rounding=ROUND_CEILING))


def fill_context_window(endpoint: ModelEndpointConfig) -> ModelEndpointConfig:
    """Return the endpoint with its context window, by default the published one of its model."""
    if endpoint.context_window is not None or endpoint.kind == "offline":
        return endpoint
    return replace(endpoint, context_window=_find_context_window(endpoint.model, endpoint.url))


@lru_cache(maxsize=256)
def _find_context_window(model: str, url: str) -> int | None:
    from genai_prices.data_snapshot import get_snapshot  # late, as above

    try:
        _, model_info = get_snapshot().find_provider_model(model, None, None, url)
    except (LookupError, ValueError):
        return None
    return model_info.context_window
