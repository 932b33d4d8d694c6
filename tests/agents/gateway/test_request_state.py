"""Request states: only the exact text that a client got is accepted."""

from datetime import timedelta
from string import ascii_letters, digits
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mcp.shared.exceptions import MCPError

from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.request_state import decrypt_state, encrypt_state

CLIENT = cast(AuthenticatedClient, SimpleNamespace(key="agent:1:token:1"))
OTHER_CLIENT = cast(AuthenticatedClient, SimpleNamespace(key="agent:1:token:2"))
SUBJECT = {"name": "echo", "arguments": {"text": "hello"}}
ALPHABET = ascii_letters + digits + "-_="


def is_refused(client: AuthenticatedClient, subject: Any, text: Any) -> bool:
    with pytest.raises(MCPError) as caught:
        decrypt_state(client, subject, text)
    return caught.value.error.code == -32602


@pytest.mark.parametrize("length", range(4))
def test_a_state_contains_its_payload(length: int) -> None:
    payload = {"answers": "x" * length}
    assert decrypt_state(CLIENT, SUBJECT, encrypt_state(CLIENT, SUBJECT, payload)) == payload


# Four lengths, because only some leave unused bits in the last character.
@pytest.mark.parametrize("length", range(0, 64, 16))
def test_a_truncated_or_extended_state_is_refused(length: int) -> None:
    text = encrypt_state(CLIENT, SUBJECT, {"answers": "x" * length})
    position = len(text.rstrip("=")) - 1
    for character in ALPHABET:
        if character != text[position]:
            assert is_refused(CLIENT, SUBJECT, text[:position] + character + text[position + 1 :])


@pytest.mark.parametrize("more", ["=", "====", "A", "\n", " ", "!", "é", "TAMPERED"])
def test_a_modified_state_is_refused(more: str) -> None:
    text = encrypt_state(CLIENT, SUBJECT, {})
    for changed in (text + more, more + text, text[:40] + more + text[40:]):
        assert is_refused(CLIENT, SUBJECT, changed)


@pytest.mark.parametrize("text", [None, 7, "", {}, "x" * (256 * 1024 + 1)])
def test_an_invalid_state_is_refused(text: Any) -> None:
    assert is_refused(CLIENT, SUBJECT, text)


def test_a_state_is_valid_only_for_its_caller_and_request() -> None:
    text = encrypt_state(CLIENT, SUBJECT, {})
    assert is_refused(OTHER_CLIENT, SUBJECT, text)
    assert is_refused(CLIENT, {**SUBJECT, "name": "add"}, text)


def test_a_state_expires() -> None:
    assert is_refused(
        CLIENT, SUBJECT, encrypt_state(CLIENT, SUBJECT, {}, lifetime=timedelta(seconds=-1))
    )
