"""States given to clients: only the very text that was given out comes back as what it held."""

from datetime import timedelta
from string import ascii_letters, digits
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mcp.shared.exceptions import MCPError

from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.request_state import decrypt_state, encrypt_state

ANA = cast(AuthenticatedClient, SimpleNamespace(key="agent:1:token:1"))
BEN = cast(AuthenticatedClient, SimpleNamespace(key="agent:1:token:2"))
SUBJECT = {"name": "echo", "arguments": {"text": "hello"}}
WRITTEN = ascii_letters + digits + "-_="


def refused(visitor: AuthenticatedClient, subject: Any, text: Any) -> bool:
    with pytest.raises(MCPError) as caught:
        decrypt_state(visitor, subject, text)
    return caught.value.error.code == -32602


@pytest.mark.parametrize("length", range(4))
def test_a_state_contains_its_payload(length: int) -> None:
    held = {"answers": "x" * length}
    assert decrypt_state(ANA, SUBJECT, encrypt_state(ANA, SUBJECT, held)) == held


# Four lengths, since only some leave bits of the last character unused.
@pytest.mark.parametrize("length", range(0, 64, 16))
def test_a_truncated_or_extended_state_is_refused(length: int) -> None:
    text = encrypt_state(ANA, SUBJECT, {"answers": "x" * length})
    at = len(text.rstrip("=")) - 1
    for other in WRITTEN:
        if other != text[at]:
            assert refused(ANA, SUBJECT, text[:at] + other + text[at + 1 :])


@pytest.mark.parametrize("more", ["=", "====", "A", "\n", " ", "!", "é", "TAMPERED"])
def test_a_modified_state_is_refused(more: str) -> None:
    text = encrypt_state(ANA, SUBJECT, {})
    for changed in (text + more, more + text, text[:40] + more + text[40:]):
        assert refused(ANA, SUBJECT, changed)


@pytest.mark.parametrize("text", [None, 7, "", {}, "x" * (256 * 1024 + 1)])
def test_an_invalid_state_is_refused(text: Any) -> None:
    assert refused(ANA, SUBJECT, text)


def test_a_state_is_valid_only_for_its_caller_and_request() -> None:
    text = encrypt_state(ANA, SUBJECT, {})
    assert refused(BEN, SUBJECT, text)
    assert refused(ANA, {**SUBJECT, "name": "add"}, text)


def test_a_state_expires() -> None:
    assert refused(ANA, SUBJECT, encrypt_state(ANA, SUBJECT, {}, lifetime=timedelta(seconds=-1)))
