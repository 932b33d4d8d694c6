"""Tokens that are none of an issuer of ours: every one of them lets nobody in."""

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
from tests.agents.gateway.conftest import Wire
from tests.agents.gateway.external_tokens import HERE, Clock, clock, login, refused, tools, trusted
from tests.servers.token_issuer import TokenIssuer, listening, unsigned

__all__ = ["clock", "login", "trusted"]

pytestmark = pytest.mark.django_db(transaction=True)


def pem(private: Any) -> bytes:
    return private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def by_public_key(login: TokenIssuer) -> str:
    """Return a token signed with the public key as if it were a secret."""
    text = unsigned({"alg": "HS256", "typ": "at+jwt", "kid": "one"}, login.claims(HERE))
    signed = text.rpartition(".")[0]
    mark = hmac.new(pem(login.private["one"]), signed.encode(), "sha256").digest()
    return f"{signed}.{base64.urlsafe_b64encode(mark).rstrip(b'=').decode()}"


def strange() -> Any:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


HEADER = {"alg": "RS256", "typ": "at+jwt", "kid": "one"}
# Every token that is refused, made by the issuer that is trusted or by somebody else.
ATTACKS: dict[str, Any] = {
    "unsigned": lambda it: unsigned(HEADER | {"alg": "none"}, it.claims(HERE)),
    "unsigned, written otherwise": lambda it: unsigned(HEADER | {"alg": "nOnE"}, it.claims(HERE)),
    "a signature of nothing": lambda it: unsigned(HEADER, it.claims(HERE)),
    "the public key as a secret": by_public_key,
    "a stranger's key": lambda it: it.token(HERE, key=strange()),
    "a stranger's key in the header": lambda it: it.token(
        HERE, key=strange(), headers={"jwk": it.keys[0]}
    ),
    "for another audience": lambda it: it.token("https://other.example.com/mcp"),
    "for another address of ours": lambda it: it.token(f"{settings.BONOBOT_URL}/mcp"),
    "for a longer address": lambda it: it.token(f"{HERE}/"),
    "for nobody": lambda it: it.token([]),
    "without an audience": lambda it: it.token(None),
    "an audience that is none": lambda it: it.token({"a": HERE}),
    "of another issuer": lambda it: it.token(HERE, iss="https://login.example.com"),
    "of an issuer written otherwise": lambda it: it.token(HERE, iss=f"{it.url}/"),
    "without an issuer": lambda it: it.token(HERE, iss=None),
    "expired": lambda it: it.token(HERE, exp=int(time.time()) - 60),
    "without an end": lambda it: it.token(HERE, exp=None),
    "an end that is a text": lambda it: it.token(HERE, exp="9999999999"),
    "an end that is a list": lambda it: unsigned(HEADER, it.claims(HERE, exp=[1]), b"x"),
    "not yet good": lambda it: it.token(HERE, nbf=int(time.time()) + 120),
    "issued in the future": lambda it: it.token(HERE, iat=int(time.time()) + 120),
    "without the time of issue": lambda it: it.token(HERE, iat=None),
    "without a subject": lambda it: it.token(HERE, sub=None),
    "a subject that can't be stored": lambda it: it.token(HERE, sub="a\x00\ud800"),
    "a subject of nothing": lambda it: it.token(HERE, sub=""),
    "an issuer that can't be stored": lambda it: it.token(HERE, iss="https://a\x00"),
    "an issuer of half a character": lambda it: unsigned(HEADER, {"iss": "\ud800"}, b"x"),
    "an identity token": lambda it: it.token(HERE, headers={"typ": "JWT"}),
    "of no type": lambda it: it.token(HERE, headers={"typ": None}),
    "a path as the key's id": lambda it: it.token(
        HERE, key=strange(), headers={"kid": "../../../../dev/null"}
    ),
    "a number as the key's id": lambda it: unsigned(HEADER | {"kid": 7}, it.claims(HERE), b"x"),
    "a long id of a key": lambda it: it.token(HERE, headers={"kid": "k" * 5_000}),
    "something to be understood": lambda it: it.token(
        HERE, headers={"crit": ["exp"], "exp": 9_999_999_999}
    ),
    "too deep": lambda it: f"{unsigned(HEADER, {}).partition('.')[0]}.{'W1tb' * 1_500}.e30",
    "no text at all": lambda it: "eyJ..",
}


def test_tokens_for_other_audiences_are_refused(
    helper: Agent, wire: Wire, login: TokenIssuer, trusted: Issuer
) -> None:
    in_by = {name: tools(wire, made(login)) for name, made in ATTACKS.items()}
    assert {name: reply.status for name, reply in in_by.items()} == dict.fromkeys(ATTACKS, 401)
    assert {reply.message["code"] for reply in in_by.values()} == {"bad_token"}
    assert tools(wire, login.token(HERE, more="x" * 8_000)).status == 401
    assert tools(wire, login.token(HERE)).status == 200


def test_urls_in_a_token_header_arent_requested(
    helper: Agent, wire: Wire, login: TokenIssuer, trusted: Issuer
) -> None:
    with listening() as evil:
        evil.private["one"] = strange()
        evil.rotate("evil")
        there = dict.fromkeys(("jku", "x5u"), f"{evil.url}/keys")
        text = login.token(HERE, key=evil.private["evil"], headers={**there, "kid": "evil"})
        refused(wire, text)
        assert not evil.http.asked


def test_an_untrusted_issuer_isnt_requested(helper: Agent, wire: Wire, login: TokenIssuer) -> None:
    refused(wire, login.token(HERE))
    assert not login.http.asked


def test_a_token_is_valid_only_for_its_organization(
    acme: Organization, helper: Agent, wire: Wire, login: TokenIssuer
) -> None:
    other = factories.create_organization("other")
    factories.create_issuer(other, login.url, role="owner", allow_private=True)
    assert tools(wire, login.token(HERE)).status == 404


def test_published_symmetric_and_weak_keys_arent_used(
    helper: Agent, wire: Wire, login: TokenIssuer, trusted: Issuer
) -> None:
    secret = base64.urlsafe_b64encode(b"s" * 32).decode().rstrip("=")
    login.keys.append({"kty": "oct", "kid": "oct", "k": secret})
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505
    login.publish("weak", weak.public_key())
    login.publish("enc", login.private["one"].public_key(), use="enc")
    refused(wire, login.token(HERE, kid="oct", key=b"s" * 32, algorithm="HS256"))
    with pytest.warns(InsecureKeyLengthWarning):
        refused(wire, login.token(HERE, kid="weak", key=weak))
    refused(wire, login.token(HERE, kid="enc", key=login.private["one"]))
    # Without an id, the one key that fits is meant; of two, none.
    refused(wire, login.token(HERE, kid=None))


def test_keys_are_fetched_only_from_the_issuers_metadata(
    helper: Agent, wire: Wire, login: TokenIssuer, trusted: Issuer, clock: Clock
) -> None:
    for metadata in (
        {"issuer": "https://login.example.com"},
        {"jwks_uri": None},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": "http://169.254.169.254/keys"},
    ):
        login.metadata = metadata
        reply = tools(wire, login.token(HERE))
        assert (reply.status, reply.message["code"]) == (503, "issuer_unreachable"), metadata
        clock.now += jwks.RETRY_S
    assert login.reads == 0
