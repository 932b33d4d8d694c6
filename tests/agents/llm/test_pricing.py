"""Prices of replies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.llm.interface import ModelEndpointConfig, TokenUsage
from agents.llm.pricing import build_expected_usage, calculate_price

USAGE = TokenUsage(1_000, 10)


def test_the_offline_model_is_free() -> None:
    assert calculate_price(ModelEndpointConfig("offline"), USAGE) == 0
    assert calculate_price(ModelEndpointConfig("offline"), None) == 0


def test_the_price_of_the_endpoint_is_preferred_and_rounded_up() -> None:
    endpoint = ModelEndpointConfig(
        "openai", model="gpt-4o", input_price=1_500_000, output_price=6_000_001
    )
    assert calculate_price(endpoint, TokenUsage(1, 0)) == 2
    assert calculate_price(endpoint, USAGE) == 1_500 + 61


def test_a_published_price_is_found_by_the_providers_url() -> None:
    assert calculate_price(ModelEndpointConfig("openai", model="gpt-4o"), USAGE) == 2_600
    assert (
        calculate_price(
            ModelEndpointConfig("openai", "https://api.openai.com/v1", model="gpt-4o"), USAGE
        )
        == 2_600
    )


def test_cached_tokens_use_the_providers_cache_price() -> None:
    cached = calculate_price(
        ModelEndpointConfig("openai", model="gpt-4o"), TokenUsage(1_000, 10, cached_tokens=800)
    )
    assert cached is not None
    assert 0 < cached < 2_600


def test_cache_prices_of_the_endpoint_apply_with_its_own_prices() -> None:
    usage = TokenUsage(1_000, 10, cached_tokens=600, cache_write_tokens=300)
    endpoint = ModelEndpointConfig(
        "anthropic",
        input_price=1_000_000,
        output_price=5_000_000,
        cache_read_price=100_000,
        cache_write_price=2_000_000,
    )
    assert calculate_price(endpoint, usage) == 100 + 60 + 600 + 50


def test_unset_cache_prices_never_count_too_little() -> None:
    usage = TokenUsage(1_000, 10, cached_tokens=600, cache_write_tokens=300)
    endpoint = ModelEndpointConfig("anthropic", input_price=1_000_000, output_price=5_000_000)
    assert calculate_price(endpoint, usage) == 100 + 600 + 375 + 50


def test_more_cached_tokens_than_input_cost_no_more_than_the_input() -> None:
    endpoint = ModelEndpointConfig("openai", input_price=1_000_000, output_price=1_000_000)
    assert calculate_price(endpoint, TokenUsage(10, 0, cached_tokens=600)) == 10


@pytest.mark.parametrize(
    ("endpoint", "written_tokens"),
    [
        (ModelEndpointConfig("anthropic"), 1_000),
        (ModelEndpointConfig("bedrock"), 1_000),
        (ModelEndpointConfig("anthropic", prompt_caching=False), 0),
        (ModelEndpointConfig("openai"), 0),
    ],
)
def test_a_request_is_reserved_as_if_it_filled_the_cache(
    endpoint: ModelEndpointConfig, written_tokens: int
) -> None:
    expected_usage = build_expected_usage(endpoint, 1_000, 10)
    assert expected_usage == TokenUsage(1_000, 10, cache_write_tokens=written_tokens)


def test_cache_writes_use_the_providers_write_price() -> None:
    endpoint = ModelEndpointConfig("anthropic", model="claude-opus-4-5")
    uncached = calculate_price(endpoint, TokenUsage(1_000, 10))
    cached = calculate_price(endpoint, TokenUsage(1_000, 10, cache_write_tokens=800))
    assert uncached is not None
    assert cached is not None
    assert uncached < cached


@pytest.mark.parametrize(
    "endpoint",
    [
        ModelEndpointConfig("anthropic", model="claude-opus-4-5"),
        ModelEndpointConfig("google", model="gemini-2.5-pro"),
        ModelEndpointConfig(
            "bedrock", region="us-east-1", model="us.anthropic.claude-opus-4-5-20251101-v1:0"
        ),
        ModelEndpointConfig("azure", "https://acme.openai.azure.com", model="gpt-4o"),
        ModelEndpointConfig("responses", model="gpt-4o"),
    ],
    ids=lambda endpoint: endpoint.kind,
)
def test_each_provider_has_published_prices(endpoint: ModelEndpointConfig) -> None:
    price = calculate_price(endpoint, USAGE)
    assert price is not None
    assert price > 0


@pytest.mark.parametrize(
    "endpoint",
    [
        ModelEndpointConfig("openai", "http://127.0.0.1:11434/v1", model="gpt-4o"),
        ModelEndpointConfig("openai", "https://api.openai.com/v1", model="no-such-model"),
        ModelEndpointConfig("openai", "http://127.0.0.1:11434/v1", model="llama3", input_price=5),
    ],
)
def test_an_unknown_price_is_none_and_not_zero(endpoint: ModelEndpointConfig) -> None:
    assert calculate_price(endpoint, USAGE) is None


def test_missing_usage_has_no_price() -> None:
    assert (
        calculate_price(ModelEndpointConfig("openai", input_price=1, output_price=1), None) is None
    )


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_price_is_never_below_the_exact_one(
    input_tokens: int, output_tokens: int, input_price: int, output_price: int
) -> None:
    cost = calculate_price(
        ModelEndpointConfig("openai", input_price=input_price, output_price=output_price),
        TokenUsage(input_tokens, output_tokens),
    )
    assert cost is not None
    assert (
        0
        <= cost * 1_000_000 - (input_tokens * input_price + output_tokens * output_price)
        < 1_000_000
    )
