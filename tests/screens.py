"""Every screen of the admin, from its own table of addresses, and an organization to show there."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest
import pytest_django
from django.contrib.admin import site
from django.db import transaction
from django.template import Template
from django.template.loader import select_template
from django.test import Client
from django.test import client as test_client
from django.test.utils import _TestState
from django.urls import URLPattern, URLResolver, reverse
from django_celery_beat.models import PeriodicTask

from agents.attachments import Attachment, store_attachments
from agents.budgets.services import BudgetLine, set_budgets
from agents.models import ModelEndpoint
from agents.skills.services import SkillSpec, save_skill
from bonobot.accounts.invitations import create_invitation
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.admin_pages import load_admin_pages
from bonobot.jobs import schedules
from bonobot.ledger.models import AuditRow
from mcp_servers.bulk_jobs import start_bulk_job
from mcp_servers.models import BulkJob, HealthCheck, Launcher, Preset
from tests import admin_client, factories

# Addresses that aren't pages of ours: Django's own, and those that end the session.
NOT_OURS = frozenset({"logout", "jsi18n", "autocomplete", "view_on_site", "app_list", "search"})
SCHEDULE = "django_celery_beat_periodictask"
LISTS = (
    "mcp_servers_server_changelist",
    "mcp_servers_preset_changelist",
    "mcp_servers_launcher_changelist",
    "agents_agent_changelist",
    "agents_session_changelist",
    "agents_approval_changelist",
    "agents_elicitationrequest_changelist",
    "agents_modelendpoint_changelist",
    "ledger_auditrow_changelist",
    "tenancy_membership_changelist",
    "tenancy_invitation_changelist",
    "tenancy_token_changelist",
    "tenancy_issuer_changelist",
    "tenancy_provider_changelist",
    "tenancy_organization_changelist",
    "tenancy_user_changelist",
    "notices_notificationchannel_changelist",
    "notices_notification_changelist",
    f"{SCHEDULE}_changelist",
)


def addresses(patterns: Any = None) -> Iterator[tuple[str, list[str]]]:
    """Yield every named address of the admin with the names of its parameters."""
    for pattern in site.get_urls() if patterns is None else patterns:
        if isinstance(pattern, URLResolver):
            yield from addresses(pattern.url_patterns)
        elif isinstance(pattern, URLPattern) and pattern.name not in {None, *NOT_OURS}:
            yield str(pattern.name), list(pattern.pattern.converters)


GIF = b"GIF89a" + bytes(16)
# What an address asks for beside its object.
QUERIES = {
    "agents_session_image": f"?sha256={sha256(GIF).hexdigest()}",
    "agents_session_file": f"?sha256={sha256(b'notes').hexdigest()}",
}
# Of servers of another kind than the one that is here; of a link that was mailed at another time;
# of providers that platform administrators don't sign in by.
ABSENT = frozenset({"mcp_servers_server_remove_operation", "profile_proof", "profile_link"})
load_admin_pages()
ADDRESSES = sorted(dict(addresses()).items())


def fill(where: Organization, *, many: int = 1) -> dict[str, UUID]:
    """Fill an organization with one (or many) of everything; return an id of each model."""
    boss = factories.build_administrator(where)
    for number in range(many):
        server = admin_client.web_server(where, f"web{number}")
        HealthCheck.objects.create(
            organization=where, server=server, kind="health", ok=False, code="x"
        )
        for tool in range(many):
            admin_client.offer(server, f"tool{tool}")
        agent = factories.create_agent(where, f"helper{number}")
        flow = factories.create_workflow(agent, f"flow{number}", hooks=many)
        skill = save_skill(boss, SkillSpec(name=f"skill{number}", text="x", agents=[agent.slug]))
        set_budgets(boss, agent, [BudgetLine("tokens", "month", 10), BudgetLine("calls", "day", 5)])
        factories.attach_server(boss, agent, server)
        session, approval = factories.create_waiting_session(agent, "hello")
        question = factories.create_elicitation(session, server)
        given = [Attachment("a.gif", GIF), Attachment("notes.txt", b"notes")]
        said = {"text": "Look."} | store_attachments(where.pk, given)
        session.steps.create(seq=99, kind="message", state="done", payload=said)
        token, _text = create_token(boss, name=f"t{number}", role=Role.MEMBER)
        issuer = factories.create_issuer(where, f"https://{where.slug}-{number}.example.com")
        provider = factories.create_provider(where, f"https://{where.slug}-{number}.example.com")
        notice = factories.create_notification(where, f"Pager{number}")
        asked = create_invitation(
            boss, f"{where.slug}-{number}@example.com", Role.MEMBER
        ).invitation
        member = User.objects.create_user(f"{where.slug}-{number}")
        Membership.objects.create(organization=where, user=member, role=Role.MEMBER)
    own = {"slug": "own", "name": "Own", "transport_type": "http"}
    preset = Preset.objects.create(organization=where, **own)
    going = start_bulk_job(boss, BulkJob.Kind.TEST, [server])
    launcher, _made = Launcher.objects.get_or_create(command="uvx")
    schedules.sync_schedules(schedules.get_scheduled_entries())
    return {
        SCHEDULE: PeriodicTask.objects.get(name="sweep").pk,
        "mcp_servers_server": server.pk,
        "mcp_servers_bulkjob": going.pk,
        "mcp_servers_preset": preset.pk,
        "mcp_servers_launcher": launcher.pk,
        "agents_agent": agent.pk,
        "agents_session": session.pk,
        "agents_skill": skill.pk,
        "agents_workflow": flow.pk,
        "agents_approval": approval.pk,
        "agents_elicitationrequest": question.pk,
        "agents_budget": agent.budgets.all()[0].pk,
        "agents_modelendpoint": ModelEndpoint.objects.filter(organization=where)[0].pk,
        "ledger_auditrow": AuditRow.objects.for_organization(where.pk)[0].pk,
        "tenancy_membership": Membership.objects.filter(organization=where)[0].pk,
        "tenancy_token": token.pk,
        "tenancy_invitation": asked.pk,
        "tenancy_issuer": issuer.pk,
        "tenancy_provider": provider.pk,
        "notices_notificationchannel": notice.channel_id,
        "notices_notification": notice.pk,
        "tenancy_organization": where.pk,
        "tenancy_user": member.pk,
    }


def arguments(name: str, parameters: list[str], ids: dict[str, UUID]) -> dict[str, Any]:
    """Return what an address takes, for objects with these ids."""
    model = next((model for model in ids if name.startswith(f"{model}_")), "tenancy_user")
    values = {"slug": "own", "id": ids["tenancy_user"], "user_id": ids["tenancy_user"]}
    values["job_id"] = ids["mcp_servers_bulkjob"]
    values["provider_id"], values["identity_id"] = ids["tenancy_provider"], ids["tenancy_user"]
    values["text"] = "of-another-time"  # what a mailed link ends with
    return {one: values.get(one, ids[model]) for one in parameters}


def address(name: str, parameters: list[str], ids: dict[str, UUID]) -> str:
    """Return an address of the admin for objects with these ids, with what it asks for beside."""
    path = reverse(f"admin:{name}", kwargs=arguments(name, parameters, ids))
    return path + QUERIES.get(name, "")


@dataclass(frozen=True)
class Visit:
    """What an address of the admin answered to a GET request."""

    name: str
    path: str
    status_code: int
    headers: str
    content: bytes  # blank if it is a stream
    streaming: bool
    template: str = ""  # that the page was made from, where it tells

    @property
    def is_page(self) -> bool:
        """Whether it is a whole page, not a piece, a file or another address."""
        return self.status_code == 200 and b"<html" in self.content

    @property
    def text(self) -> str:
        """Everything that was answered."""
        return self.headers + self.content.decode("utf-8", "replace")


def visit_page(client: Client, name: str, path: str, **headers: str) -> Visit:
    """Get an address of the admin."""
    answer = client.get(path, headers=headers)
    content = b"" if answer.streaming else answer.content
    told = str(dict(answer.headers))
    named = getattr(answer, "template_name", None) or ""
    template = named if isinstance(named, str) else str(select_template(named).template.name)
    return Visit(name, path, answer.status_code, told, content, bool(answer.streaming), template)


def visit_pages(
    client: Client,
    ids: dict[str, UUID],
    addresses: Iterable[tuple[str, list[str]]] = tuple(ADDRESSES),
    **headers: str,
) -> list[Visit]:
    """Get these addresses of the admin, all of them by default, for objects with these ids."""
    with only_answers():
        return [
            visit_page(client, name, address(name, parameters, ids), **headers)
            for name, parameters in addresses
        ]


@contextmanager
def only_answers() -> Iterator[None]:
    """Render templates as the product does: tests' own signal and copy of contexts are left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_client, "store_rendered_templates", lambda *_, **__: None)
        render = _TestState.saved_data.template_render  # type: ignore[attr-defined]
        patch.setattr(Template, "_render", render)
        yield


@contextmanager
def shared_rows(blocker: pytest_django.DjangoDbBlocker) -> Iterator[None]:
    """Let the tests of a module share rows in a transaction, which is rolled back after the last.

    A fixture of such a module requests `django_db_setup`; its tests have no `django_db` mark.
    """
    with blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)
