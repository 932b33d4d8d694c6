"""Prices of models.

An endpoint's own price is used first (with its cache prices for the parts of the input that the
provider read from its cache or wrote to it), then the published prices bundled with `genai_prices`,
looked up by the provider's URL (a local server's `gpt-4o` isn't OpenAI's). Otherwise the price is
None (unknown), which a cost budget must refuse. Prices of new models come with a newer version of
`genai-prices` in the lock file.
"""

from decimal import ROUND_CEILING, Decimal

from agents.llm.interface import ModelEndpointConfig, TokenUsage
from agents.llm.provider_kinds import PROVIDER_KINDS

MILLION = 1_000_000
# What providers that bill cache writes take for them, in percent of the input price.
CACHE_WRITE_PERCENT = 125


def calculate_price(endpoint: ModelEndpointConfig, usage: TokenUsage | None) -> int | None:
    """Return the price in micro-dollars, rounded up; None if unknown."""
    if endpoint.kind == "offline":
        return 0
    if usage is None:
        return None
    if endpoint.input_price is not None and endpoint.output_price is not None:
        cost = _calculate_input_cost(endpoint, endpoint.input_price, usage)
        cost += usage.output_tokens * endpoint.output_price
        return -(-cost // MILLION)
    return _find_published_price(endpoint, usage)


def build_expected_usage(
    endpoint: ModelEndpointConfig, input_tokens: int, output_tokens: int
) -> TokenUsage:
    """Return the most expensive usage of a request, to reserve: all input is written to a cache."""
    marks_cache_points = PROVIDER_KINDS[endpoint.kind].marks_cache_points
    writes_cache = endpoint.prompt_caching and marks_cache_points
    return TokenUsage(
        input_tokens, output_tokens, cache_write_tokens=input_tokens if writes_cache else 0
    )


def _calculate_input_cost(
    endpoint: ModelEndpointConfig, input_price: int, usage: TokenUsage
) -> int:
    """Return the price of the input in millionths of a micro-dollar."""
    read_price, write_price = endpoint.cache_read_price, endpoint.cache_write_price
    if read_price is None:
        read_price = input_price
    if write_price is None:
        write_price = -(-input_price * CACHE_WRITE_PERCENT // 100)
    read_tokens = min(usage.cached_tokens, usage.input_tokens)
    written_tokens = min(usage.cache_write_tokens, usage.input_tokens - read_tokens)
    other_tokens = usage.input_tokens - read_tokens - written_tokens
    return other_tokens * input_price + read_tokens * read_price + written_tokens * write_price


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
