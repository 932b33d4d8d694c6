"""Verified tokens: cached, reloaded after changes; failures are limited and never cached."""

from contextlib import suppress
from datetime import timedelta

import pytest
import time_machine
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from bonobot.accounts.attempt_limits import INVALID_TOKENS
from bonobot.accounts.models import Organization, Token
from bonobot.accounts.principals import Principal, build_cli_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens import cache as token_cache
from bonobot.accounts.tokens import services as tokens
from bonobot.accounts.tokens import token_secrets
from bonobot.accounts.tokens.cache import TooManyFailures, VerifiedToken, VerifiedTokenCache
from bonobot.accounts.tokens.services import InvalidToken
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from bonobot.ledger.policy_generations import load_policy_generation
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

HERE = "192.0.2.7"


@pytest.fixture
def administrator() -> Principal:
    return build_cli_principal(Organization.objects.create(name="Acme", slug="acme"))


@pytest.fixture
def cache() -> VerifiedTokenCache:
    return VerifiedTokenCache()


def create_token(administrator: Principal, **terms: object) -> tuple[Token, str]:
    return tokens.create_token(administrator, role=Role.OPERATOR, **({"name": "ci"} | terms))


def verify(cache: VerifiedTokenCache, text: str, address: str = HERE) -> VerifiedToken:
    return get_runtime().call(cache.verify_token, text, address)


def test_a_cached_token_needs_no_query_and_no_hmac(administrator, cache, monkeypatch):
    _, text = create_token(administrator)
    first = cache.load_issued_token(text, HERE)
    monkeypatch.setattr(token_secrets.hmac, "new", None)
    with CaptureQueriesContext(connection) as queries:
        assert cache.find_cached(text, HERE) is first
    assert not queries.captured_queries
    assert verify(cache, text) is first


def test_an_uncached_token_takes_one_query_and_has_its_generation(administrator, cache):
    token, text = create_token(administrator)
    with CaptureQueriesContext(connection) as queries:
        verified = cache.load_issued_token(text, HERE)
    assert len(queries) == 1
    assert verified.generation == load_policy_generation(administrator.organization_id) > 0
    assert (verified.principal.token_id, verified.principal.role) == (token.pk, Role.OPERATOR)


def test_the_cache_doesnt_contain_token_secrets(administrator, cache):
    _, text = create_token(administrator)
    cache.load_issued_token(text, HERE)
    assert text.split("_", 2)[2] not in repr(vars(cache))


def test_the_least_recently_used_token_is_evicted(administrator):
    cache = VerifiedTokenCache(max_tokens=2)
    texts = [create_token(administrator, name=str(n))[1] for n in range(3)]
    cache.load_issued_token(texts[0], HERE)
    cache.load_issued_token(texts[1], HERE)
    cache.find_cached(texts[0], HERE)
    cache.load_issued_token(texts[2], HERE)
    assert [cache.find_cached(text, HERE) is not None for text in texts] == [True, False, True]


def exhaust_failures(cache: VerifiedTokenCache, address: str) -> None:
    """Use invalid tokens until lookups are refused."""
    for n in range(1_000):
        with suppress(InvalidToken):
            cache.load_issued_token(f"bnb_{n}_nothing", address)


@pytest.mark.usefixtures("stopped_clock")
def test_invalid_tokens_arent_cached_and_lookups_are_limited(administrator, cache):
    _, text = create_token(administrator)
    with CaptureQueriesContext(connection) as queries, pytest.raises(TooManyFailures) as raised:
        exhaust_failures(cache, HERE)
    assert len(queries) >= INVALID_TOKENS.burst
    assert len(queries) < 2 * INVALID_TOKENS.burst
    assert (raised.value.status, raised.value.retry_after) == (429, 1)
    assert not cache._tokens
    # Other addresses and cached tokens aren't affected.
    assert cache.load_issued_token(text, "192.0.2.8").principal.label == "ci"
    assert cache.find_cached(text, HERE) is not None


def test_an_ipv6_network_counts_as_one_address(administrator, cache):
    for address in ("2001:db8::1", "2001:db8::2"):
        with pytest.raises(TooManyFailures):
            exhaust_failures(cache, address)
    with pytest.raises(InvalidToken):
        cache.load_issued_token("bnb_0_nothing", "2001:db8:0:1::1")


def test_a_cached_token_ends_with_its_expiry(administrator, cache):
    _, text = create_token(administrator, expires_at=timezone.now() + timedelta(minutes=5))
    assert verify(cache, text).expires_at is not None
    with time_machine.travel(timezone.now() + timedelta(minutes=6), tick=False):
        assert cache.find_cached(text, HERE) is None
        with pytest.raises(InvalidToken):
            cache.load_issued_token(text, HERE)
    assert not cache._tokens


def test_a_cached_token_is_refused_from_other_networks(administrator, cache):
    _, text = create_token(administrator, networks=["192.0.2.0/24"])
    assert verify(cache, text).networks
    with pytest.raises(InvalidToken):
        verify(cache, text, "198.51.100.1")
    assert AuditRow.objects.filter(action="token_rejected").count() == 1


def test_the_last_use_is_written_in_the_background_once_a_minute(administrator, cache):
    token, text = create_token(administrator)
    before = load_policy_generation(administrator.organization_id)
    verify(cache, text)
    load_last_use = lambda: Token.objects.get(pk=token.pk).last_used_at  # noqa: E731
    eventually(lambda: load_last_use() is not None, what="the last use")
    first = load_last_use()
    verify(cache, text)
    assert load_last_use() == first
    assert load_policy_generation(administrator.organization_id) == before


@pytest.mark.parametrize("change", ["save", "update", "bulk update", "delete", "revoke"])
def test_a_cached_principal_is_read_again_after_any_change(administrator, cache, change):
    token, text = create_token(administrator)
    assert (
        get_runtime().call(cache.verify_current_token, text, HERE).principal.role == Role.OPERATOR
    )
    rows = Token.objects.filter(pk=token.pk)
    token.role = Role.MEMBER
    if change == "save":
        token.save()
    elif change == "update":
        rows.update(role=Role.MEMBER)
    elif change == "bulk update":
        Token.objects.bulk_update([token], ["role"])
    elif change == "delete":
        rows.delete()
    else:
        tokens.revoke_token(administrator, token)
    assert verify(cache, text).principal.role == Role.OPERATOR
    if change in ("delete", "revoke"):
        with pytest.raises(InvalidToken):
            get_runtime().call(cache.verify_current_token, text, HERE)
        assert not cache._tokens
    else:
        assert (
            get_runtime().call(cache.verify_current_token, text, HERE).principal.role == Role.MEMBER
        )


def test_an_older_read_doesnt_replace_a_newer_one(administrator, cache, monkeypatch):
    token, text = create_token(administrator)
    older = token_cache.load_verified_token(text, HERE)
    Token.objects.filter(pk=token.pk).update(role=Role.MEMBER)
    newer = cache.load_issued_token(text, HERE)
    monkeypatch.setattr(token_cache, "load_verified_token", lambda *_: older)
    cache.load_issued_token(text, HERE)
    assert cache.find_cached(text, HERE) is newer
