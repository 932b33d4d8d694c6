"""The settings check page.

It shows what this web process finds. The checks take seconds because they wait for workers, so a
script loads them after the page; without scripts, a link does.
"""

from dataclasses import replace

from django.core.checks import CheckMessage, Tags, run_checks
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext_lazy as _

from agents.doctor_checks import run_settings_checks
from bonobot.accounts.admin_base.responses import FRAGMENT_HEADER, render_fragment, render_screen
from bonobot.accounts.current_organization import resolve_principal
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden

URL_NAME = "settings_check"
# Django checks of settings; the others check code and already pass at startup.
CHECK_TAGS = [Tags.security, Tags.database]

FINDING_TITLES = {
    "python": _("Python"),
    "packages": _("Packages"),
    "folder": _("Data folder"),
    "keys": _("Keys"),
    "database": _("Database"),
    "migrations": _("Migrations"),
    "secrets": _("Stored secrets"),
    "clock": _("Clock"),
    "connections": _("Database connections"),
    "broker": _("Broker"),
    "worker": _("Workers"),
    "beat": _("Scheduler"),
    "redis": _("Redis memory"),
    "schedule": _("Schedule"),
    "disabled": _("Disabled schedules"),
    "change notices": _("Change notifications"),
    "isolation": _("stdio server isolation"),
    "stdio sandbox": _("Sandbox of stdio servers"),
    "stdio configuration": _("Configuration of stdio servers"),
    "namespaces": _("Namespace sandbox"),
    "bubblewrap": _("Bubblewrap sandbox"),
    "sandbox": _("Agent sandbox"),
}


def show_settings_check(request: HttpRequest) -> HttpResponseBase:
    """Show the check; raises `Forbidden` unless a platform administrator asks."""
    if not resolve_principal(request).platform_admin:
        remedy = format_message("Contact a platform administrator.")
        raise Forbidden("This action isn't available here.", rule="platform_admin", remedy=remedy)
    if FRAGMENT_HEADER in request.headers:
        return render_fragment(
            request, "settings_check/results.html", check_results=_build_findings_context()
        )
    context = _build_findings_context() if "look" in request.GET else None
    return render_screen(
        request, "settings_check/page.html", title=_("Settings check"), check_results=context
    )


def _build_findings_context() -> dict[str, object]:
    findings = [
        replace(finding, name=str(FINDING_TITLES.get(finding.name, finding.name)))
        for finding in run_settings_checks()
    ]
    return {
        "problems": [finding for finding in findings if finding.state != "ok"],
        "passed": [finding for finding in findings if finding.state == "ok"],
        "deployment_warnings": _list_deployment_warnings(),
    }


def _list_deployment_warnings() -> list[CheckMessage]:
    """Return the warnings of Django's deployment checks."""
    check_messages = run_checks(
        tags=CHECK_TAGS, include_deployment_checks=True, databases=["default"]
    )
    return [message for message in check_messages if not message.is_silenced()]
