"""All addresses: admin, REST, logins, health. The gateway answers before Django (`asgi`)."""

from django.contrib import admin
from django.contrib.auth.decorators import login_not_required
from django.urls import include, path
from django.views.generic import RedirectView

from bonobot import health, readiness

urlpatterns = [
    path("", login_not_required(RedirectView.as_view(pattern_name="admin:index"))),
    path("admin/", admin.site.urls),
    path("api/", include("bonobot.api")),
    path("language/", include("django.conf.urls.i18n")),
    path("oauth/", include("mcp_servers.oauth.urls")),
    path(health.PATH.removeprefix("/"), health.healthz),
    path(readiness.PATH.removeprefix("/"), readiness.readyz),
]
