"""Every page of the admin, from its URL patterns, and an organization with one of each object."""

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
from agents.skills import SkillSpec, save_skill
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

# Django's own pages, and those that end the session.
EXCLUDED = frozenset({"logout", "jsi18n", "autocomplete", "view_on_site", "app_list", "search"})
SCHEDULE = "django_celery_beat_periodictask"
LISTS = (
    "mcp_servers_server_changelist",
    "mcp_servers_preset_changelist",
    "mcp_servers_launcher_changelist",
    "agents_agent_changelist",
    "agents_session_changelist",
    "agents_approval_changelist",
    "agents_accessrequest_changelist",
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


def list_addresses(patterns: Any = None) -> Iterator[tuple[str, list[str]]]:
    """Yield every URL name of the admin with the names of its parameters."""
    for pattern in site.get_urls() if patterns is None else patterns:
        if isinstance(pattern, URLResolver):
            yield from list_addresses(pattern.url_patterns)
        elif isinstance(pattern, URLPattern) and pattern.name not in {None, *EXCLUDED}:
            yield str(pattern.name), list(pattern.pattern.converters)


GIF = b"GIF89a" + bytes(16)
# Query strings that pages require.
QUERIES = {
    "agents_session_image": f"?sha256={sha256(GIF).hexdigest()}",
    "agents_session_file": f"?sha256={sha256(b'notes').hexdigest()}",
}
# Pages that these objects don't have: operations of an HTTP server, an expired link, and logins by
# providers, which platform administrators don't use.
ABSENT = frozenset({"mcp_servers_server_remove_operation", "profile_confirm_email", "profile_link"})
load_admin_pages()
ADDRESSES = sorted(dict(list_addresses()).items())


def create_objects(organization: Organization, *, many: int = 1) -> dict[str, UUID]:
    """Create one (or `many`) of each object; return an id for each model."""
    administrator = factories.build_administrator(organization)
    for number in range(many):
        server = admin_client.create_web_server(organization, f"web{number}")
        HealthCheck.objects.create(
            organization=organization, server=server, kind="health", ok=False, code="x"
        )
        for tool in range(many):
            admin_client.declare_tool(server, f"tool{tool}")
        agent = factories.create_agent(organization, f"helper{number}")
        flow = factories.create_workflow(agent, f"flow{number}", hooks=many)
        skill = save_skill(
            administrator, SkillSpec(name=f"skill{number}", text="x", agents=[agent.slug])
        )
        set_budgets(
            administrator, agent, [BudgetLine("tokens", "month", 10), BudgetLine("calls", "day", 5)]
        )
        factories.attach_server(administrator, agent, server)
        session, approval = factories.create_waiting_session(
            agent, "hello", own_name="tool0", server_id=server.pk, server_name=server.name
        )
        question = factories.create_elicitation(session, server)
        attachments = [Attachment("a.gif", GIF), Attachment("notes.txt", b"notes")]
        payload = {"text": "Look."} | store_attachments(organization.pk, attachments)
        session.steps.create(seq=99, kind="message", state="done", payload=payload)
        token, _text = create_token(administrator, name=f"t{number}", role=Role.MEMBER)
        issuer = factories.create_issuer(
            organization, f"https://{organization.slug}-{number}.example.com"
        )
        provider = factories.create_provider(
            organization, f"https://{organization.slug}-{number}.example.com"
        )
        notification = factories.create_notification(organization, f"Pager{number}")
        invitation = create_invitation(
            administrator, f"{organization.slug}-{number}@example.com", Role.MEMBER
        ).invitation
        member = User.objects.create_user(f"{organization.slug}-{number}")
        Membership.objects.create(organization=organization, user=member, role=Role.MEMBER)
    fields = {"slug": "own", "name": "Own", "transport_type": "http"}
    preset = Preset.objects.create(organization=organization, **fields)
    job = start_bulk_job(administrator, BulkJob.Kind.TEST, [server])
    launcher, _made = Launcher.objects.get_or_create(command="uvx")
    schedules.sync_schedules(schedules.get_scheduled_entries())
    return {
        SCHEDULE: PeriodicTask.objects.get(name="sweep").pk,
        "mcp_servers_server": server.pk,
        "mcp_servers_bulkjob": job.pk,
        "mcp_servers_preset": preset.pk,
        "mcp_servers_launcher": launcher.pk,
        "agents_agent": agent.pk,
        "agents_session": session.pk,
        "agents_skill": skill.pk,
        "agents_workflow": flow.pk,
        "agents_approval": approval.pk,
        "agents_accessrequest": factories.create_access_request(organization).pk,
        "agents_elicitationrequest": question.pk,
        "agents_budget": agent.budgets.all()[0].pk,
        "agents_modelendpoint": ModelEndpoint.objects.filter(organization=organization)[0].pk,
        "ledger_auditrow": AuditRow.objects.for_organization(organization.pk)[0].pk,
        "tenancy_membership": Membership.objects.filter(organization=organization)[0].pk,
        "tenancy_token": token.pk,
        "tenancy_invitation": invitation.pk,
        "tenancy_issuer": issuer.pk,
        "tenancy_provider": provider.pk,
        "notices_notificationchannel": notification.channel_id,
        "notices_notification": notification.pk,
        "tenancy_organization": organization.pk,
        "tenancy_user": member.pk,
    }


def build_arguments(name: str, parameters: list[str], ids: dict[str, UUID]) -> dict[str, Any]:
    """Return the parameters of a URL for objects with these ids."""
    model = next((model for model in ids if name.startswith(f"{model}_")), "tenancy_user")
    values = {"slug": "own", "id": ids["tenancy_user"], "user_id": ids["tenancy_user"]}
    values["job_id"] = ids["mcp_servers_bulkjob"]
    values["provider_id"], values["identity_id"] = ids["tenancy_provider"], ids["tenancy_user"]
    values["text"] = "of-another-time"  # the end of an e-mailed link
    return {parameter: values.get(parameter, ids[model]) for parameter in parameters}


def build_address(name: str, parameters: list[str], ids: dict[str, UUID]) -> str:
    """Return a URL of the admin, with its query string, for objects with these ids."""
    path = reverse(f"admin:{name}", kwargs=build_arguments(name, parameters, ids))
    return path + QUERIES.get(name, "")


@dataclass(frozen=True)
class Visit:
    """The response of an admin page to a GET request."""

    name: str
    path: str
    status_code: int
    headers: str
    content: bytes  # empty if it is a stream
    streaming: bool
    template: str = ""  # of a TemplateResponse

    @property
    def is_page(self) -> bool:
        """Whether it is a complete page, not a fragment, a file or a redirect."""
        return self.status_code == 200 and b"<html" in self.content

    @property
    def text(self) -> str:
        """Headers and content."""
        return self.headers + self.content.decode("utf-8", "replace")


def visit_page(client: Client, name: str, path: str, **headers: str) -> Visit:
    """GET a page of the admin."""
    response = client.get(path, headers=headers)
    content = b"" if response.streaming else response.content
    response_headers = str(dict(response.headers))
    template_name = getattr(response, "template_name", None) or ""
    template = (
        template_name
        if isinstance(template_name, str)
        else str(select_template(template_name).template.name)
    )
    return Visit(
        name,
        path,
        response.status_code,
        response_headers,
        content,
        bool(response.streaming),
        template,
    )


def visit_pages(
    client: Client,
    ids: dict[str, UUID],
    addresses: Iterable[tuple[str, list[str]]] = tuple(ADDRESSES),
    **headers: str,
) -> list[Visit]:
    """GET these pages of the admin, all by default, for objects with these ids."""
    with render_without_signals():
        return [
            visit_page(client, name, build_address(name, parameters, ids), **headers)
            for name, parameters in addresses
        ]


@contextmanager
def render_without_signals() -> Iterator[None]:
    """Render templates without the signals and context copies of Django's test client."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_client, "store_rendered_templates", lambda *_, **__: None)
        render = _TestState.saved_data.template_render  # type: ignore[attr-defined]
        patch.setattr(Template, "_render", render)
        yield


@contextmanager
def share_rows(blocker: pytest_django.DjangoDbBlocker) -> Iterator[None]:
    """Let the tests of a module share rows in a transaction, which is rolled back after the last.

    A fixture of such a module requests `django_db_setup`; its tests have no `django_db` mark.
    """
    with blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)
