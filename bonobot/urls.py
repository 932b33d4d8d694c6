"""URLs of the admin, REST API, sign-in and health. `asgi` routes the gateway before Django."""

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.decorators import login_not_required
from django.urls import include, path, re_path
from django.views.generic import RedirectView

from bonobot.accounts import middleware
from bonobot.accounts.views.documentation import show_documentation
from bonobot.admin_pages import load_admin_pages
from bonobot.core.admin.page_paths import get_default_path, get_page_path
from bonobot.monitoring import health_endpoints

load_admin_pages()

# Admin pages that were renamed: links in notifications that were sent have the old URL.
RENAMED_PAGES = {
    "agents/question": "elicitation-requests",
    "let-in": "authorized-clients",
    "mcp_servers/bulkjob": "mcp-servers/jobs",
    "mcp_servers/round": "mcp-servers/jobs",
    "mcp_servers/server/rounds": "mcp-servers/jobs",
    "notices/channel": "notification-channels",
    "notices/notice": "notifications",
    "organization/halt": "organization/kill-switch",
    "programs": "oauth-clients",
    **{get_default_path(model): get_page_path(model) for model in admin.site._registry},
}

urlpatterns = [
    path("", login_not_required(RedirectView.as_view(pattern_name="admin:index"))),
    path("admin/account/", include("bonobot.accounts.urls")),
    *(
        re_path(
            rf"^admin/{old}/(?P<rest>.*)$",
            RedirectView.as_view(url=f"/admin/{new}/%(rest)s", query_string=True),
        )
        for old, new in RENAMED_PAGES.items()
    ),
    path("admin/", admin.site.urls),
    path("api/", include("bonobot.api_urls")),
    path("", include("agents.gateway.server_registry")),
    path("docs", RedirectView.as_view(pattern_name="documentation")),
    path("docs/", admin.site.admin_view(show_documentation), name="documentation"),
    path("docs/<path:name>", admin.site.admin_view(show_documentation)),
    path("language/setlang/", middleware.choose_language, name="set_language"),
    path("oauth/", include("mcp_servers.oauth_client.urls")),
    *([path("", include("bonobot.oauth_server.urls"))] if settings.BONOBOT_OAUTH else []),
    path(health_endpoints.LIVENESS_PATH.removeprefix("/"), health_endpoints.answer_healthz),
    path(health_endpoints.READINESS_PATH.removeprefix("/"), health_endpoints.answer_readyz),
]

handler403 = "bonobot.core.http.error_pages.show_forbidden"
handler404 = "bonobot.core.http.error_pages.show_not_found"
handler500 = "bonobot.core.http.error_pages.show_server_error"
handler429 = "bonobot.core.http.error_pages.show_too_many_requests"  # of allauth's pages
