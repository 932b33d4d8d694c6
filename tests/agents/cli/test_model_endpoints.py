"""`bonobot models`: endpoints are created, updated, listed, and deleted; keys are never shown."""

from agents.models import ModelEndpoint
from bonobot.core.text.masking import MASK

ADD = ("models", "add", "Claude", "--kind", "anthropic", "--model", "claude-opus-5", "--json")


def test_an_endpoint_is_created_with_a_key_from_the_environment(bonobot, monkeypatch):
    monkeypatch.setenv("CLAUDE_KEY", "geheim")
    result = bonobot(*ADD, "--key", "${CLAUDE_KEY}", "--image-input", "--thinking", "high")
    assert result.status == 0
    assert result.json["api_key"] == MASK
    assert (result.json["image_input"], result.json["thinking"]) == (True, "high")
    endpoint = ModelEndpoint.objects.get()
    assert endpoint.api_key.open() == "geheim"
    assert "geheim" not in result.out + bonobot("models", "list").out


def test_omitted_options_are_kept(bonobot):
    bonobot(*ADD, "--key", "geheim", "--retries", "5")
    bonobot("models", "add", "Local", "--kind", "offline")
    result = bonobot("models", "set", "claude", "--fallback", "local", "--json")
    assert (result.json["fallback"], result.json["retries"]) == ("local", 5)
    result = bonobot("models", "set", "claude", "--no-native-tools", "--fallback", "", "--json")
    assert (result.json["fallback"], result.json["native_tools"]) == (None, False)
    assert ModelEndpoint.objects.get(slug="claude").api_key.open() == "geheim"


def test_limits_of_answers_and_requests_are_stored(bonobot):
    result = bonobot(*ADD, "--max-output-tokens", "500", "--context-window", "32000")
    assert (result.json["max_tokens"], result.json["context_window"]) == (500, 32_000)
    bonobot("models", "set", "claude", "--thinking", "low")
    row = ModelEndpoint.objects.get()
    assert (row.max_tokens, row.context_window) == (500, 32_000)


def test_invalid_values_are_refused_with_their_field(bonobot):
    result = bonobot("models", "add", "Far", "--kind", "bedrock", "--model", "m", "--json")
    assert (result.status, result.error["field"]) == (1, "region")
    result = bonobot("models", "set", "nobody", "--json")
    assert (result.status, result.error["code"]) == (1, "not_found")


def test_a_price_above_the_highest_is_refused_in_dollars(bonobot, capsys):
    assert bonobot(*ADD, "--input-price", "9,007,199,255").status == 2
    assert not ModelEndpoint.objects.exists()
    message = "'9,007,199,255' is more than the highest price, $9,007,199,254"
    assert message in capsys.readouterr().err
    assert bonobot("mcp", "price", "docs", "--call-price", "1000001").status == 2
    assert "'1000001' is more than the highest price, $1,000,000" in capsys.readouterr().err


def test_an_unused_endpoint_is_deleted(bonobot):
    bonobot(*ADD)
    assert bonobot("models", "remove", "claude", "--json").json["slug"] == "claude"
    assert not ModelEndpoint.objects.exists()
    assert bonobot("models", "list", "--json").json == []


def test_caching_thinking_and_pdf_settings_are_stored(bonobot):
    added = bonobot(*ADD, "--cache-read-price", "0.3", "--cache-write-price", "3.75").json
    assert (added["cache_read_price"], added["cache_write_price"]) == (300_000, 3_750_000)
    flags = ("prompt_caching", "pdf_input", "thinking_summaries")
    assert [added[name] for name in flags] == [True, False, False]
    options = ("--no-prompt-caching", "--pdf-input", "--thinking-summaries")
    changed = bonobot("models", "set", "claude", *options, "--json").json
    assert [changed[name] for name in flags] == [False, True, True]
    assert ModelEndpoint.objects.get().cache_read_price == 300_000
