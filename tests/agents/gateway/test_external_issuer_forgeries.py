"""Forged and invalid tokens, which are all refused."""

import base64
import hmac
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import settings
from jwt.warnings import InsecureKeyLengthWarning

from agents.models import Agent
from bonobot.accounts.external_issuers import jwks
from bonobot.accounts.models import Issuer, Organization
from tests import factories
from tests.agents.gateway.conftest import GatewayClient
from tests.agents.gateway.external_tokens import (
    RESOURCE,
    Clock,
    assert_refused,
    clock,
    list_tools,
    login,
    trusted,
)
from tests.servers.token_issuer import TokenIssuer, build_unsigned_token, listening

__all__ = ["clock", "login", "trusted"]

pytestmark = pytest.mark.django_db(transaction=True)


def encode_public_key(private: Any) -> bytes:
    return private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def sign_with_public_key(login: TokenIssuer) -> str:
    """Build a token signed with the public key as a symmetric secret."""
    text = build_unsigned_token(
        {"alg": "HS256", "typ": "at+jwt", "kid": "one"}, login.claims(RESOURCE)
    )
    signed = text.rpartition(".")[0]
    mark = hmac.new(encode_public_key(login.private["one"]), signed.encode(), "sha256").digest()
    return f"{signed}.{base64.urlsafe_b64encode(mark).rstrip(b'=').decode()}"


def generate_key() -> Any:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


HEADER = {"alg": "RS256", "typ": "at+jwt", "kid": "one"}
# Tokens that are refused, built by the trusted issuer or by somebody else.
ATTACKS: dict[str, Any] = {
    "unsigned": lambda issuer: build_unsigned_token(
        HEADER | {"alg": "none"}, issuer.claims(RESOURCE)
    ),
    "unsigned, written otherwise": lambda issuer: build_unsigned_token(
        HEADER | {"alg": "nOnE"}, issuer.claims(RESOURCE)
    ),
    "a signature of nothing": lambda issuer: build_unsigned_token(HEADER, issuer.claims(RESOURCE)),
    "the public key as a secret": sign_with_public_key,
    "a stranger's key": lambda issuer: issuer.token(RESOURCE, key=generate_key()),
    "a stranger's key in the header": lambda issuer: issuer.token(
        RESOURCE, key=generate_key(), headers={"jwk": issuer.keys[0]}
    ),
    "for another audience": lambda issuer: issuer.token("https://other.example.com/mcp"),
    "for another address of ours": lambda issuer: issuer.token(f"{settings.BONOBOT_URL}/mcp"),
    "for a longer address": lambda issuer: issuer.token(f"{RESOURCE}/"),
    "for nobody": lambda issuer: issuer.token([]),
    "bound to a key": lambda issuer: issuer.token(RESOURCE, cnf={"jkt": "x" * 43}),
    "bound to a certificate": lambda issuer: issuer.token(RESOURCE, cnf={"x5t#S256": "x" * 43}),
    "without an audience": lambda issuer: issuer.token(None),
    "an audience that is none": lambda issuer: issuer.token({"a": RESOURCE}),
    "of another issuer": lambda issuer: issuer.token(RESOURCE, iss="https://login.example.com"),
    "of an issuer written otherwise": lambda issuer: issuer.token(RESOURCE, iss=f"{issuer.url}/"),
    "without an issuer": lambda issuer: issuer.token(RESOURCE, iss=None),
    "expired": lambda issuer: issuer.token(RESOURCE, exp=int(time.time()) - 60),
    "without an end": lambda issuer: issuer.token(RESOURCE, exp=None),
    "an end that is a text": lambda issuer: issuer.token(RESOURCE, exp="9999999999"),
    "an end that is a list": lambda issuer: build_unsigned_token(
        HEADER, issuer.claims(RESOURCE, exp=[1]), b"x"
    ),
    "not yet good": lambda issuer: issuer.token(RESOURCE, nbf=int(time.time()) + 120),
    "issued in the future": lambda issuer: issuer.token(RESOURCE, iat=int(time.time()) + 120),
    "without the time of issue": lambda issuer: issuer.token(RESOURCE, iat=None),
    "without a subject": lambda issuer: issuer.token(RESOURCE, sub=None),
    "a subject that can't be stored": lambda issuer: issuer.token(RESOURCE, sub="a\x00\ud800"),
    "a subject of nothing": lambda issuer: issuer.token(RESOURCE, sub=""),
    "an issuer that can't be stored": lambda issuer: issuer.token(RESOURCE, iss="https://a\x00"),
    "an issuer of half a character": lambda issuer: build_unsigned_token(
        HEADER, {"iss": "\ud800"}, b"x"
    ),
    "an identity token": lambda issuer: issuer.token(RESOURCE, headers={"typ": "JWT"}),
    "of no type": lambda issuer: issuer.token(RESOURCE, headers={"typ": None}),
    "a path as the key's id": lambda issuer: issuer.token(
        RESOURCE, key=generate_key(), headers={"kid": "../../../../dev/null"}
    ),
    "a number as the key's id": lambda issuer: build_unsigned_token(
        HEADER | {"kid": 7}, issuer.claims(RESOURCE), b"x"
    ),
    "a long id of a key": lambda issuer: issuer.token(RESOURCE, headers={"kid": "k" * 5_000}),
    "something to be understood": lambda issuer: issuer.token(
        RESOURCE, headers={"crit": ["exp"], "exp": 9_999_999_999}
    ),
    "too deep": lambda issuer: (
        f"{build_unsigned_token(HEADER, {}).partition('.')[0]}.{'W1tb' * 1_500}.e30"
    ),
    "no text at all": lambda issuer: "eyJ..",
}


def test_forged_and_invalid_tokens_are_refused(
    helper: Agent, gateway_client: GatewayClient, login: TokenIssuer, trusted: Issuer
) -> None:
    replies = {name: list_tools(gateway_client, build(login)) for name, build in ATTACKS.items()}
    assert {name: reply.status for name, reply in replies.items()} == dict.fromkeys(ATTACKS, 401)
    assert {reply.message["code"] for reply in replies.values()} == {"bad_token"}
    assert list_tools(gateway_client, login.token(RESOURCE, more="x" * 8_000)).status == 401
    assert list_tools(gateway_client, login.token(RESOURCE)).status == 200


def test_urls_in_a_token_header_arent_requested(
    helper: Agent, gateway_client: GatewayClient, login: TokenIssuer, trusted: Issuer
) -> None:
    with listening() as evil:
        evil.private["one"] = generate_key()
        evil.rotate("evil")
        urls = dict.fromkeys(("jku", "x5u"), f"{evil.url}/keys")
        text = login.token(RESOURCE, key=evil.private["evil"], headers={**urls, "kid": "evil"})
        assert_refused(gateway_client, text)
        assert not evil.http.asked


def test_an_untrusted_issuer_isnt_requested(
    helper: Agent, gateway_client: GatewayClient, login: TokenIssuer
) -> None:
    assert_refused(gateway_client, login.token(RESOURCE))
    assert not login.http.asked


def test_a_token_is_valid_only_for_its_organization(
    acme: Organization, helper: Agent, gateway_client: GatewayClient, login: TokenIssuer
) -> None:
    other_organization = factories.create_organization("other")
    factories.create_issuer(other_organization, login.url, role="owner", allow_private=True)
    assert list_tools(gateway_client, login.token(RESOURCE)).status == 404


def test_published_symmetric_and_weak_keys_arent_used(
    helper: Agent, gateway_client: GatewayClient, login: TokenIssuer, trusted: Issuer
) -> None:
    secret = base64.urlsafe_b64encode(b"s" * 32).decode().rstrip("=")
    login.keys.append({"kty": "oct", "kid": "oct", "k": secret})
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505
    login.publish("weak", weak.public_key())
    login.publish("enc", login.private["one"].public_key(), use="enc")
    assert_refused(
        gateway_client, login.token(RESOURCE, kid="oct", key=b"s" * 32, algorithm="HS256")
    )
    with pytest.warns(InsecureKeyLengthWarning):
        assert_refused(gateway_client, login.token(RESOURCE, kid="weak", key=weak))
    assert_refused(gateway_client, login.token(RESOURCE, kid="enc", key=login.private["one"]))
    # Without a key id the only matching key is used; none if there are several.
    assert_refused(gateway_client, login.token(RESOURCE, kid=None))


def test_keys_are_fetched_only_from_the_issuers_metadata(
    helper: Agent, gateway_client: GatewayClient, login: TokenIssuer, trusted: Issuer, clock: Clock
) -> None:
    for metadata in (
        {"issuer": "https://login.example.com"},
        {"jwks_uri": None},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": "http://169.254.169.254/keys"},
    ):
        login.metadata = metadata
        reply = list_tools(gateway_client, login.token(RESOURCE))
        assert (reply.status, reply.message["code"]) == (503, "issuer_unreachable"), metadata
        clock.now += jwks.RETRY_S
    assert login.reads == 0
