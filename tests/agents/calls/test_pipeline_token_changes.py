"""A changed token applies to the next call on every host, also if the host has it cached."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings

from agents.calls.pipeline import CallRequest, make_call
from agents.kill_switch import halt_organization
from benchmarks.governed_call_stages import count_operations
from bonobot.accounts.models import Token
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role, TokenScope
from bonobot.accounts.tokens.cache import VerifiedToken, VerifiedTokenCache
from bonobot.accounts.tokens.services import InvalidToken, create_token, revoke_token, update_token
from bonobot.core.problems import Forbidden, NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.writer.writer_thread import get_writer
from tests import factories
from tests.parts import ROOT
from tests.processes import build_environment

pytestmark = pytest.mark.django_db(transaction=True)

ECHO = "mcp_workshop_echo"
HERE = "192.0.2.7"


class Host:
    """A host with its own token cache, which isn't notified of changes by others."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens = text, VerifiedTokenCache()

    async def _call_tool(self, **options: Any) -> str:
        verified: VerifiedToken = await self.tokens.verify_token(self.text, HERE)
        fields: dict[str, Any] = {
            "principal": verified.principal,
            "principal_generation": verified.generation,
            "renew_principal": self._renew_principal,
            "tool": ECHO,
            "arguments": {"text": "x"},
            "via": "gateway",
            "holder": "server:tests:renewing",
        }
        return (await make_call(CallRequest(**(fields | options)))).text

    async def _renew_principal(self) -> Principal:
        return (await self.tokens.verify_current_token(self.text, HERE)).principal

    def call_tool(self, **options: Any) -> str:
        """Make a call like the gateway."""
        return get_runtime().call(self._call_tool, **options)

    def catch_problem(self, **options: Any) -> Problem:
        """Make a call that is denied, and return its problem."""
        with pytest.raises(Problem) as caught:
            self.call_tool(**options)
        return caught.value


@pytest.fixture
def token(acme, helper, workshop) -> Iterator[tuple[Token, str]]:
    administrator = factories.build_administrator(acme)
    yield create_token(administrator, name="ide", role=Role.MEMBER, agent_ids=[helper.pk])
    get_writer().close()


@pytest.fixture
def hosts(token, helper) -> list[Host]:
    """Two hosts that have both cached the token."""
    used_hosts = [Host(token[1]), Host(token[1])]
    for host in used_hosts:
        assert host.call_tool(agent_id=helper.pk) == "x"
    return used_hosts


INVALIDATIONS: dict[str, Callable[[Token], object]] = {
    "delete": lambda token: token.delete(),
    "delete many": lambda token: Token.objects.filter(pk=token.pk).delete(),
    "revoke": lambda token: revoke_token(factories.build_administrator(token.organization), token),
    "expire": lambda token: Token.objects.filter(pk=token.pk).update(expires_at=token.created_at),
}


@pytest.mark.parametrize("invalidation", INVALIDATIONS)
def test_an_expired_token_is_refused_on_every_host(token, hosts, helper, invalidation):
    INVALIDATIONS[invalidation](token[0])
    for host in hosts:
        assert isinstance(host.catch_problem(agent_id=helper.pk), InvalidToken)


def test_a_changed_role_applies_to_the_next_call(token, hosts, helper):
    row = token[0]
    row.role = Role.AUDITOR
    Token.objects.bulk_update([row], ["role"])
    assert {host.catch_problem(agent_id=helper.pk).rule for host in hosts} == {"role:use_tools"}
    row.refresh_from_db()
    row.role = Role.MEMBER
    row.save()
    assert [host.call_tool(agent_id=helper.pk) for host in hosts] == ["x", "x"]


def test_changed_scopes_and_agents_apply_immediately(acme, token, hosts, helper):
    administrator, other_agent = (
        factories.build_administrator(acme),
        factories.create_agent(acme, "other"),
    )
    update_token(administrator, token[0], scopes=[TokenScope.AGENTS])
    assert {host.catch_problem(agent_id=helper.pk).code for host in hosts} == {"insufficient_scope"}
    update_token(administrator, token[0], scopes=[TokenScope.TOOLS], agent_ids=[other_agent.pk])
    assert all(isinstance(host.catch_problem(agent_id=helper.pk), NotFound) for host in hosts)
    update_token(administrator, token[0], agent_ids=[other_agent.pk, helper.pk])
    assert [host.call_tool(agent_id=helper.pk) for host in hosts] == ["x", "x"]


def test_a_newer_snapshot_reloads_the_cached_token(token, hosts, helper):
    Token.objects.filter(pk=token[0].pk).update(role=Role.AUDITOR)
    first, second = hosts
    assert isinstance(first.catch_problem(agent_id=helper.pk), Forbidden)
    # The process's snapshot is current by now; only the second host's cached token is outdated.
    assert isinstance(second.catch_problem(agent_id=helper.pk), Forbidden)


def test_the_kill_switch_and_a_deleted_agent_apply_to_cached_tokens(
    acme, token, hosts, helper, workshop
):
    halt_organization(factories.build_administrator(acme))
    assert {host.catch_problem(agent_id=helper.pk).code for host in hosts} == {
        "kill_switch_enabled"
    }
    helper.delete()
    assert all(isinstance(host.catch_problem(agent_id=helper.pk), NotFound) for host in hosts)


def test_a_repeated_call_with_a_cached_token_queries_only_the_ledger(hosts, helper):
    host = hosts[0]
    host.call_tool(agent_id=helper.pk)
    with count_operations() as counter:
        assert host.call_tool(agent_id=helper.pk) == "x"
    counts = counter.counts
    assert counts["other queries"] == counts["hops to an ORM thread"] == 0


REVOKE = """
import sys, django
django.setup()
from django.utils import timezone
from bonobot.accounts.models import Token
Token.objects.filter(pk=sys.argv[1]).update(revoked_at=timezone.now())
"""


def test_a_revocation_by_another_process_applies_to_the_next_call(token, hosts, helper):
    variables = {
        "DJANGO_SETTINGS_MODULE": str(settings.SETTINGS_MODULE),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [sys.executable, "-c", REVOKE, str(token[0].pk)]
    subprocess.run(command, cwd=ROOT, env=build_environment(variables), check=True, timeout=60)
    assert isinstance(hosts[0].catch_problem(agent_id=helper.pk), InvalidToken)
