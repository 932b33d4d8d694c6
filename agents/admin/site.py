"""The admin site: sign-in, dashboard, URLs and organization switcher."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.admin import site
from django.contrib.auth.decorators import login_not_required
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.templatetags.static import static
from django.urls import URLPattern, URLResolver, path, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache

from agents.admin import settings_check
from agents.admin.command_palette import search_documentation, search_palette
from agents.admin.dashboard import build_dashboard
from agents.admin.live_updates import select_topics, stream_changes
from agents.admin.navigation import (
    OAUTH_CLIENTS,
    SETTINGS,
    Navigation,
    build_navigation,
    count_pending,
)
from bonobot.accounts.admin_base import ScopedAdmin
from bonobot.accounts.admin_base.form_versions import add_form_versions
from bonobot.accounts.admin_base.responses import (
    View,
    build_permissions,
    handle_problems,
    render_fragment,
    render_screen,
)
from bonobot.accounts.current_organization import (
    ORGANIZATION_SESSION_KEY,
    SingleSignOnRequired,
    get_sso_session,
    list_reachable_organizations,
    resolve_principal,
)
from bonobot.accounts.first_account import is_account_missing
from bonobot.accounts.middleware import EXPIRED_PARAMETER
from bonobot.accounts.models import Organization
from bonobot.accounts.password_reset import record_password_change
from bonobot.accounts.roles import Action
from bonobot.accounts.second_factor import SecondFactorRequired
from bonobot.accounts.sso.identity_providers import list_announced_providers
from bonobot.accounts.views import profile
from bonobot.accounts.views.first_account import can_create_first_organization
from bonobot.accounts.views.login import SignInForm, SignInView
from bonobot.core.admin.page_paths import rename_paths
from bonobot.core.admin.theme import AdminSite
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound, Problem
from bonobot.ledger.admin.usage import show_usage

__all__ = ["BonobotAdminSite", "site"]

# Apps whose models are managed elsewhere: permissions by memberships, schedules, OAuth grants and
# sign-in by Bonobot's own pages.
EXCLUDED_APPS = frozenset(
    {"account", "auth", "django_celery_beat", "mfa", "oauth2_provider", "usersessions"}
)
MAX_ORGANIZATIONS = 50


class BonobotAdminSite(AdminSite):
    """The admin of Bonobot."""

    login_form = SignInForm
    logout_template = "accounts/signed_out.html"
    site_header = "Bonobot"
    site_title = "Bonobot"
    index_title = _("Dashboard")
    enable_nav_sidebar = True

    def register(self, model_or_iterable: Any, admin_class: Any = None, **options: Any) -> None:
        """Register a model, unless its app is excluded and the admin is another library's."""
        models = model_or_iterable if isinstance(model_or_iterable, list | tuple) else None
        is_own_admin = isinstance(admin_class, type) and issubclass(admin_class, ScopedAdmin)
        for model in models if models is not None else [model_or_iterable]:
            if is_own_admin or model._meta.app_label not in EXCLUDED_APPS:
                super().register(model, admin_class, **options)

    def has_permission(self, request: HttpRequest) -> bool:
        """Return whether the user is active and belongs to an organization."""
        if not request.user.is_active:
            return False
        try:
            resolve_principal(request)
        except Problem:
            return False
        return True

    def admin_view(self, view: View, cacheable: bool = False) -> View:
        """Wrap a view with permission checks, form versions and error pages."""
        return super().admin_view(handle_problems(add_form_versions(view)), cacheable)

    def password_change(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Change the user's own password; record and announce it."""
        with record_password_change(request.user.pk, resolve_principal(request)):
            return super().password_change(request, extra_context)

    @method_decorator((never_cache, login_not_required))
    def login(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show the sign-in page, or redirect to what a signed-in user still has to set up."""
        access_problem: Problem | None = None
        if request.method == "GET" and request.user.is_authenticated:
            if can_create_first_organization(request):
                return HttpResponseRedirect(reverse("account_begin"))
            try:
                resolve_principal(request)
            except SecondFactorRequired:
                return HttpResponseRedirect(reverse("mfa_index"))
            except SingleSignOnRequired:
                return HttpResponseRedirect(reverse("account_sso_choose"))
            except Problem as problem:
                access_problem = problem  # signed in without access: the page says so
            else:
                return HttpResponseRedirect(reverse("admin:index"))
        context = {
            **self.each_context(request),
            "title": _("Sign in"),
            "app_path": request.get_full_path(),
            "username": request.user.get_username(),
            "access_problem": access_problem,
            "is_account_missing": is_account_missing(),
            "providers": list_announced_providers(),
            "onward": request.GET.get("next", ""),
            "is_session_expired": EXPIRED_PARAMETER in request.GET and "next" in request.GET,
            **(extra_context or {}),
        }
        request.current_app = self.name
        view = SignInView.as_view(
            template_name="accounts/login.html",
            authentication_form=self.login_form,
            extra_context=context,
        )
        return view(request)

    def logout(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Sign out; the page links to the sign-out of the identity provider."""
        sign_in_mark = get_sso_session(request) or {}
        context = {"title": _("You are signed out."), "leaving": sign_in_mark.get("leaving", "")}
        return super().logout(request, context | (extra_context or {}))

    def get_urls(self) -> list[URLPattern | URLResolver]:
        """Return the URLs, including the pages of the current organization."""
        from agents.admin.first_run import build_url_patterns
        from agents.admin.kill_switch import show_kill_switch  # these modules import this site

        own_urls = [
            path(
                "organization/",
                self.admin_view(self.choose_organization),
                name="switch_organization",
            ),
            *_build_policy_urls(self.admin_view),
            *build_url_patterns(self.admin_view),
            *profile.build_profile_urls(self.admin_view),
            path("usage/", self.admin_view(show_usage), name="usage"),
            path(f"{SETTINGS}/", self.admin_view(self.show_settings), name=SETTINGS),
            path(
                "settings-check/",
                self.admin_view(settings_check.show_settings_check),
                name=settings_check.URL_NAME,
            ),
            path("palette/", self.admin_view(self.render_command_palette), name="palette"),
            path("live/", self.admin_view(self.stream_live_updates), name="live"),
            *_build_oauth_urls(self.admin_view),
            path(
                "organization/kill-switch/",
                self.admin_view(show_kill_switch),
                name="organization_kill_switch",
            ),
        ]
        return [*own_urls, *rename_paths(super().get_urls(), self._registry)]

    def index(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> TemplateResponse | HttpResponseRedirect:
        """Show the dashboard, or redirect members who only run agents to the agents."""
        principal = resolve_principal(request)
        if not principal.may(Action.VIEW):
            return HttpResponseRedirect(reverse("admin:agents_agent_changelist"))
        return render_screen(
            request,
            "dashboard.html",
            title=self.index_title,
            **build_dashboard(principal, count_pending(request), request.GET.get("range", "")),
        )

    def show_settings(self, request: HttpRequest) -> HttpResponseBase:
        """Show the pages of the Settings area."""
        resolve_principal(request).require(Action.VIEW)
        return render_screen(request, "settings.html", title=_("Settings"))

    def app_index(
        self, request: HttpRequest, app_label: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseRedirect:
        """Redirect to the dashboard."""
        return HttpResponseRedirect(reverse("admin:index"))

    def choose_organization(self, request: HttpRequest) -> HttpResponseBase:
        """Show the choice of organizations, or switch to the chosen one."""
        if request.method != "POST":
            return render_screen(
                request, "choose_organization.html", title=_("Choose an organization")
            )
        slug = request.POST.get("to") or request.GET.get("to", "")
        if not list_reachable_organizations(request).filter(slug=slug).exists():
            raise NotFound(
                format_message(
                    "Organization {slug!r} doesn't exist, or you aren't a member.", slug=slug
                ),
                field="to",
            )
        request.session[ORGANIZATION_SESSION_KEY] = slug
        return HttpResponseRedirect(reverse("admin:index"))

    def render_command_palette(self, request: HttpRequest) -> HttpResponseBase:
        """Return the matching screens and objects as a fragment."""
        query = request.GET.get("q", "")
        navigation = self.get_sidebar_list(request)
        return render_fragment(
            request,
            "command_palette/results.html",
            results=search_palette(resolve_principal(request), navigation, query),
            documentation=search_documentation(query),
        )

    def stream_live_updates(self, request: HttpRequest) -> HttpResponseBase:
        """Stream the changes of the topics that a page names: `?topic=approvals&topic=audit`."""
        principal = resolve_principal(request)
        topics = select_topics(principal, request.GET.getlist("topic"))
        if not topics or isinstance(request, WSGIRequest):
            # The browser doesn't connect again. WSGI, as of `runserver`, can't stream.
            return HttpResponse(status=204)
        response = StreamingHttpResponse(
            stream_changes(principal, topics), content_type="text/event-stream"
        )
        response["Cache-Control"] = "no-store"
        response["X-Accel-Buffering"] = "no"
        return response

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """Add the principal, permissions and organization to every page."""
        context = super().each_context(request)
        context |= {
            "styles": [
                static(f"bonobot/{name}.css")
                for name in (
                    *("admin", "shell", "records", "approvals", "audit", "agent-tools"),
                    *("servers", "policies"),
                )
            ],
            "scripts": [
                static(f"bonobot/{name}.js")
                for name in (
                    *("theme", "fragments", "lists", "forms", "form-conflicts", "copy"),
                    *("navigation", "live", "drafts", "toasts", "option-filter", "tooltips"),
                )
            ],
            "site_favicons": [{"rel": "icon", "href": static("bonobot/icon.svg")}],
            "site_url": None,
            "account_links": _list_account_links(request),
            # The page is only rendered to read the values of its forms, so it needs no frame.
            "reads_versions": getattr(request, "reads_versions", False),
        }
        if not self.has_permission(request):
            return context
        principal = resolve_principal(request)
        organizations = list(list_reachable_organizations(request)[:MAX_ORGANIZATIONS])
        current_organization = next(
            (
                organization
                for organization in organizations
                if organization.pk == principal.organization_id
            ),
            None,
        )
        context |= {
            "principal": principal,
            "may": build_permissions(principal),
            "organizations": organizations,
            "organization": current_organization,
            "site_subheader": str(current_organization or ""),
            "site_dropdown": _build_organization_choices(organizations, current_organization),
            "account_links": [
                {"title": _("Your profile"), "link": reverse("admin:profile")},
                *context["account_links"],
            ],
        }
        return context

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Return an empty list to save time: `get_sidebar_list` is the navigation."""
        return []

    def get_sidebar_list(self, request: HttpRequest) -> Navigation:
        """Return the navigation entries that the user may open, with badges."""
        if getattr(request, "reads_versions", False):
            return Navigation()  # the page is only rendered to read the values of its forms
        return build_navigation(resolve_principal(request), request.path, count_pending(request))


def _build_policy_urls(wrap: Callable[[View], View]) -> list[URLPattern]:
    """Return the URLs of the organization's policy."""
    from agents.admin import policies, policy_simulations  # these modules import this site

    base = "organization/policy/"
    return [
        path(base, wrap(policies.show_organization_policy), name="organization_policy"),
        path(
            f"{base}agents/",
            wrap(policies.show_organization_agents),
            name="organization_policy_agents",
        ),
        path(
            f"{base}defaults/",
            wrap(policies.show_organization_defaults),
            name="organization_policy_defaults",
        ),
        path(
            f"{base}preview/",
            wrap(policies.show_organization_policy_preview),
            name="organization_policy_preview",
        ),
        path(
            f"{base}restore/",
            wrap(policies.restore_organization_policy),
            name="organization_restore_policy",
        ),
        path(
            f"{base}simulate/",
            wrap(policy_simulations.show_organization_simulation),
            name="organization_simulate",
        ),
    ]


def _build_oauth_urls(wrap: Callable[[View], View]) -> list[URLPattern]:
    """Return the URLs of the pages of OAuth clients, if OAuth is enabled."""
    if not settings.BONOBOT_OAUTH:
        return []
    from bonobot.oauth_server import admin as oauth_server_admin

    return [
        path(
            "authorized-clients/",
            wrap(oauth_server_admin.show_own_grants),
            name="authorized_clients",
        ),
        path(
            "oauth-clients/", wrap(oauth_server_admin.show_organization_clients), name=OAUTH_CLIENTS
        ),
    ]


def _list_account_links(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the links of the account menu."""
    user: Any = request.user
    links = []
    if user.is_authenticated and user.has_usable_password():
        links.append(("admin:password_change", _("Change password")))
    links.append(("mfa_index", _("Second factor")))
    if settings.BONOBOT_OAUTH:
        links.append(("admin:authorized_clients", _("Authorized clients")))
    return [{"title": title, "link": reverse(name)} for name, title in links]


def _build_organization_choices(
    organizations: list[Organization], current_organization: Organization | None
) -> list[dict[str, Any]]:
    if len(organizations) < 2:
        return []
    address = reverse("admin:switch_organization")
    return [
        {
            "title": organization.name,
            "link": f"{address}?to={organization.slug}",
            "icon": "check" if organization == current_organization else "domain",
            "attrs": {"data-post": True},
        }
        for organization in organizations
    ]
