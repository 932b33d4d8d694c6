"""All addresses: admin, REST, logins, health. The gateway answers before Django (`asgi`)."""

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.decorators import login_not_required
from django.urls import include, path
from django.views.generic import RedirectView

from bonobot import health, readiness
from bonobot.apps import load_pages
from bonobot.tenancy.screens import languages

load_pages()
urlpatterns = [
    path("", login_not_required(RedirectView.as_view(pattern_name="admin:index"))),
    path("admin/account/", include("bonobot.tenancy.screens.urls")),
    path("admin/", admin.site.urls),
    path("api/", include("bonobot.api")),
    path("language/setlang/", languages.choose, name="set_language"),
    path("oauth/", include("mcp_servers.oauth.urls")),
    *([path("", include("bonobot.authority.urls"))] if settings.BONOBOT_OAUTH else []),
    path(health.PATH.removeprefix("/"), health.healthz),
    path(readiness.PATH.removeprefix("/"), readiness.readyz),
]
