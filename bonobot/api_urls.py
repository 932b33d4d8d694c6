"""URLs below /api, and the OpenAPI document."""

from typing import Any

from django.urls import URLPattern, URLResolver, include, path, re_path
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiJsonRenderer2
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.views import APIView

from bonobot.core.api.content_negotiation import JSONContentNegotiation
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound


class UnknownPathView(APIView):
    """Handles all unknown paths below `/api/`."""

    authentication_classes = ()
    permission_classes = ()
    content_negotiation_class = JSONContentNegotiation

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Answer 404 to any method."""
        raise NotFound(
            format_message("{path} doesn't exist.", path=request.path[:200]),
            code="unknown_path",
            remedy="Paths have no trailing slash. See /api/schema for all paths.",
        )


@extend_schema(exclude=True)
class OpenApiSchemaView(SpectacularAPIView):
    """The OpenAPI document, as JSON."""

    renderer_classes = [OpenApiJsonRenderer2, OpenApiJsonRenderer]


urlpatterns: list[URLPattern | URLResolver] = [
    path("schema", OpenApiSchemaView.as_view(), name="schema"),
    path("docs", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
    path("", include("bonobot.accounts.api.urls")),
    path("", include("bonobot.notifications.api.urls")),
    path("", include("agents.gateway.api")),
    path("", include("agents.console.api")),
    path("", include("agents.api.urls")),  # first: `mcp-servers/import` is no server's id
    path("", include("mcp_servers.api.urls")),
    re_path(r"", UnknownPathView.as_view()),
]
