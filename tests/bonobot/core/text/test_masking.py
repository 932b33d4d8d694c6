"""Masking: secrets are masked in every encoding, ordinary text is unchanged."""

import base64
import json
import random
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.text import masking
from bonobot.core.text.masking import MASK, Masker, build_searchable_text, mask_text, mask_value
from bonobot.core.text.secret_names import is_secret_name

KNOWN = 'p@ss w/örd-"é"-1'
LETTERS = "aB3dEf9hIjKlMnOpQrStUvWxYz0123456789AbCdEfGh"


@pytest.fixture(autouse=True)
def _forget_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_memory", type(masking._memory)())


# Known secrets


@pytest.mark.parametrize(
    "encoded",
    [
        KNOWN,
        quote(KNOWN),
        quote(KNOWN, safe=""),
        quote_plus(KNOWN),
        json.dumps(KNOWN)[1:-1],
        json.dumps(KNOWN, ensure_ascii=False)[1:-1],
    ],
)
def test_a_known_secret_is_masked_in_every_encoding(encoded: str) -> None:
    assert mask_text(f"before {encoded} after", [KNOWN]) == f"before {MASK} after"


@pytest.mark.parametrize("before", [b"", b"x", b"xy", b"user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_known_secret_is_masked_in_base64_at_any_offset(before: bytes, encode: Any) -> None:
    text = encode(before + KNOWN.encode() + b" and the rest").decode()
    masked = mask_text(text, [KNOWN])
    assert masked.count(MASK) == 1
    # Only characters at the ends, which also encode neighboring bytes, may stay.
    assert len(text) - len(masked.replace(MASK, "")) >= len(KNOWN.encode()) * 4 // 3 - 2


@given(st.text(min_size=6), st.text(), st.text())
def test_a_masked_text_contains_no_known_secret(secret: str, head: str, tail: str) -> None:
    masked = mask_text(f"{head}{secret}{tail}", [secret])
    assert secret not in masked.replace(MASK, "\0") or secret in MASK


def test_a_secret_that_contains_another_is_masked_completely() -> None:
    assert mask_text("abcdefgh", ["abcd", "abcdefgh"]) == MASK


def test_very_short_secrets_arent_masked_in_text() -> None:
    assert mask_text("a cat sat", ["a", "cat"]) == "a cat sat"


# Names


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "db_password",
        "passwordHash",
        "PASSWORD2",
        "token",
        "access_token",
        "accessToken",
        "GITHUB_TOKEN",
        "apikey",
        "apiKey",
        "X-API-Key",
        "AWS_SECRET_ACCESS_KEY",
        "privateKey",
        "client_secret",
        "secrets",
        "Authorization",
        "proxy-authorization",
        "Set-Cookie",
        "credentials",
        "passphrase",
    ],
)
def test_a_value_with_a_secret_name_is_masked(name: str) -> None:
    assert is_secret_name(name)
    assert mask_value({name: "value", "other": "value"}) == {name: MASK, "other": "value"}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "é",
        "name",
        "max_tokens",
        "input_tokens",
        "tokens",
        "nextPageToken",
        "progressToken",
        "next_token",
        "token_type",
        "token_endpoint",
        "authorization_endpoint",
        "password_policy",
        "secret_name",
        "primary_key",
        "key",
        "keyboard",
        "tokenizer",
        "author",
        "compass",
    ],
)
def test_a_value_with_a_similar_name_isnt_masked(name: str) -> None:
    assert not is_secret_name(name)
    assert mask_value({name: "value"}) == {name: "value"}


def test_whether_a_secret_is_set_stays_visible() -> None:
    value = {"token": None, "password": "", "secret": True, "credentials": {}, "api_key": []}
    assert mask_value(value) == value


def test_everything_below_a_secret_name_is_masked() -> None:
    assert mask_value({"credentials": {"user": "u", "pass": ["x"]}, "password": 1234}) == {
        "credentials": MASK,
        "password": MASK,
    }


# Patterns


CREDENTIALS = {
    "openai": "sk-proj-" + LETTERS,
    "anthropic": "sk-ant-api03-" + LETTERS,
    "stripe": "sk_live_" + LETTERS[:24],
    "github": "ghp_" + LETTERS[:36],
    "github fine-grained": "github_pat_" + LETTERS,
    "gitlab": "glpat-" + LETTERS[:20],
    "slack": "xoxb-" + "123456789012-" + LETTERS[:24],
    "aws": "AKIA" + "ABCDEFGHIJKLMNOP",
    "google": "AIza" + LETTERS[:35],
    "npm": "npm_" + LETTERS[:36],
    "pypi": "pypi-" + LETTERS,
    "hugging face": "hf_" + LETTERS[:34],
    "sendgrid": "SG." + LETTERS[:22] + "." + LETTERS,
    "vault": "hvs." + LETTERS[:24],
    "jwt": "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxIn0." + LETTERS,
    "our own": "bnb_0123456789ab_" + LETTERS,
    "sealed by us": "gAAAAA" + LETTERS * 2,
    "private key": "-----BEGIN RSA PRIVATE KEY-----\n"
    + LETTERS
    + "\n-----END RSA PRIVATE KEY-----",
    "half a private key": "-----BEGIN PRIVATE KEY-----\n" + LETTERS,
}


@pytest.mark.parametrize("kind", CREDENTIALS)
def test_credentials_of_well_known_services_are_recognized(kind: str) -> None:
    assert mask_text(f"it is {CREDENTIALS[kind]}") == f"it is {MASK}"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Bearer abc123def456", f"Authorization: Bearer {MASK}"),
        ("basic dXNlcjpwYXNz", f"basic {MASK}"),
        ("postgres://app:hunter2@db:5432/x", f"postgres://app:{MASK}@db:5432/x"),
        ("GET /x?api_key=abc123&y=1", f"GET /x?api_key={MASK}&y=1"),
        ("https://h/cb?access_token=abc123", f"https://h/cb?access_token={MASK}"),
        ('{"password": "hunter2", "a": 1}', f'{{"password": "{MASK}", "a": 1}}'),
        ("password: hunter2", f"password: {MASK}"),
        ("export GITHUB_TOKEN=abc123", f"export GITHUB_TOKEN={MASK}"),
    ],
)
def test_a_labeled_secret_is_masked_and_its_label_kept(text: str, masked: str) -> None:
    assert mask_text(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "Uses bearer authentication and basic information.",
        "https://example.com:8080/path?page=2&key_id=7",
        "The token is a word; passwords are words.",
        "ask-me-anything-about-desk-research",
        "tokens used: 1200, secretary: Ada",
        "2026-11-21T10:00:00Z user@example.com",
        "Zeile\nfür Zeile 日本語 \U0001f600",
        "",
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert mask_text(text) == text


# Values


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("xyz "),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("xyz "), inner),
    )
)
def test_a_value_without_secrets_is_returned_as_an_equal_copy(value: Any) -> None:
    masked = mask_value(value)
    assert masked == value
    if value and isinstance(value, dict | list):
        assert masked is not value


def test_secrets_are_masked_at_every_depth_and_in_names() -> None:
    secret = "known-value-1"
    value = {"a": [{"b": (f"x {secret}",)}], f"name-{secret}": 1}
    assert mask_value(value, secrets=[secret]) == {"a": [{"b": [f"x {MASK}"]}], f"name-{MASK}": 1}


def test_values_that_arent_json_are_converted_and_masked() -> None:
    assert mask_value({"error": ValueError("password=hunter2")}) == {"error": f"password={MASK}"}


def test_lone_surrogates_neither_hide_a_secret_nor_fail() -> None:
    assert mask_text("\ud800 password=hunter2") == f"\\ud800 password={MASK}"


def test_endless_nesting_is_truncated() -> None:
    value: list[Any] = []
    for _ in range(10_000):
        value = [value]
    assert "…" in json.dumps(mask_value(value), ensure_ascii=False)


# Secrets that this process decrypted


def test_a_decrypted_secret_is_masked_in_logs() -> None:
    masking.register_secret("opened-secret-1")
    masking.register_secret("opened-secret-1")
    assert masking.get_process_masker().mask_text("it was opened-secret-1") == f"it was {MASK}"
    assert mask_text("it was opened-secret-1") == "it was opened-secret-1"


@pytest.mark.parametrize("value", ["production", "true", "5432", "application/json", "short1"])
def test_values_that_are_easy_to_guess_arent_masked(value: str) -> None:
    masking.register_secret(value)
    assert masking.get_process_masker().mask_text(f"it was {value}") == f"it was {value}"


def test_the_number_of_known_secrets_is_bounded_and_keeps_the_latest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(masking, "_memory", masking.SecretMemory(3))
    for secret in ("secret-01", "secret-02", "secret-03", "secret-01", "secret-04"):
        masking.register_secret(secret)
    text = "secret-01 secret-02 secret-03 secret-04"
    assert masking.get_process_masker().mask_text(text) == f"{MASK} secret-02 {MASK} {MASK}"


@pytest.mark.parametrize("length", [12, masking.MAX_PATTERN_LENGTH, 2_000])
def test_a_full_list_of_secrets_still_masks(length: int) -> None:
    digits = random.Random(0)  # noqa: S311 - reproducible, not for security
    secrets = [
        base64.b85encode(digits.randbytes(length)).decode()[:length]
        for _ in range(masking.MAX_PROCESS_SECRETS)
    ]
    for secret in secrets:
        masking.register_secret(secret)
    assert masking.get_process_masker().mask_text(" ".join(secrets)) == " ".join(
        [MASK] * len(secrets)
    )


def test_new_secrets_are_added_to_the_compiled_ones() -> None:
    secrets = [f"secret-number-{number:03}" for number in range(3 * masking.MAX_NEW_SECRETS)]
    for count, secret in enumerate(secrets, start=1):
        masking.register_secret(secret)
        text = masking.get_process_masker().mask_text(" ".join(secrets))
        assert text == " ".join([MASK] * count + secrets[count:])
    before = masking.get_process_masker()
    masking.register_secret(secrets[0])
    assert masking.get_process_masker() is before


def test_a_masker_can_be_used_for_many_texts() -> None:
    masker = Masker(["known-secret"])
    assert [masker.mask_text(f"{n} known-secret") for n in range(2)] == [f"0 {MASK}", f"1 {MASK}"]


PIECES = st.sampled_from(
    [
        *("bearer ", "Basic", "token=", "api_key: ", "sk-", "AKIA", "://u:", "-----BEGIN PRIVATE"),
        *(" KEY-----", "hunter2-hunter2", "ABCDEFGHIJKLMNOP", "abcdefghijklmnop", " ", "\n", "ä"),
        *("\\", '"', "\ud800", "x" * 300, "https", "@host"),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.lists(PIECES, max_size=5).map("".join),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["a", "password", "clientSecret", "hunter2-hunter2"]) | PIECES, inner
        )
    ),
)
MASKER = Masker(["hunter2-hunter2", "x" * 290], base=Masker(['a"quoted\nsecret']))


@given(VALUES)
def test_the_quick_check_finds_everything_that_would_be_masked(value: Any) -> None:
    words = build_searchable_text(value)
    if words is None:
        return
    if not MASKER.may_mask(words):
        assert MASKER.mask_value(value) == value
    if not MASKER.may_mask_known(words):
        assert MASKER.mask_known(value) == value


@pytest.mark.parametrize("value", [{1: "a"}, ("a",), "\ud800", {"a": object()}])
def test_values_that_arent_plain_json_are_always_traversed(value: Any) -> None:
    assert build_searchable_text(value) is None


def test_the_quick_check_finds_a_secret_anywhere() -> None:
    for value in ("hunter2-hunter2", ["a", {"b": "-hunter2-hunter2-"}], {"hunter2-hunter2": 1}):
        words = build_searchable_text(value)
        assert words is not None
        assert MASKER.may_mask_known(words)
    assert not MASKER.may_mask(build_searchable_text({"text": "the quick brown fox"}))  # type: ignore[arg-type]
    for value in ({"password": "x"}, ["AKIAABCDEFGHIJKLMNOP"], "Authorization: Bearer abcdefghij"):
        words = build_searchable_text(value)
        assert words is not None
        assert MASKER.may_mask(words)
