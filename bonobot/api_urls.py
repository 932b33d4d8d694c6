"""URLs below /api, and the OpenAPI document."""

from typing import Any
from urllib.parse import quote

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponsePermanentRedirect
from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.decorators.csrf import csrf_exempt
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiJsonRenderer2
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.views import APIView

from bonobot.core.api.parsers import JSONContentNegotiation
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


# Paths that were renamed after version 0.1, for clients that still send requests to the old ones.
RENAMED_PATHS = {
    r"agents/(?P<agent>[^/]+)/held": "agents/{agent}/flow-labels",
    r"agents/(?P<agent>[^/]+)/may-ask": "agents/{agent}/callable-agents",
    r"agents/(?P<agent>[^/]+)/tool-policy/replay": "agents/{agent}/tool-policy/simulate",
    r"let-in(?P<rest>/.+)?": "authorized-clients{rest}",
    r"notice-channels(?P<rest>/.+)?": "notification-channels{rest}",
    r"notices(?P<rest>/.+)?": "notifications{rest}",
    r"questions(?P<rest>/.+)?": "elicitation-requests{rest}",
    r"sessions/(?P<session>[^/]+)/grants(?P<rest>/.+)?": "sessions/{session}/approvals{rest}",
    r"token-issuers(?P<rest>/.+)?": "external-issuers{rest}",
    r"tokens/(?P<token>[^/]+)/held": "tokens/{token}/flow-labels",
    r"tool-policy/replay": "tool-policy/simulate",
}


@csrf_exempt  # the view of the new path checks the token
@login_not_required
def redirect_renamed_path(
    request: HttpRequest, new_path: str, rest: str = "", **parts: str
) -> HttpResponsePermanentRedirect:
    """Redirect to the new path with status 308, which keeps the method and the body."""
    filled = new_path.format(
        rest=quote(rest), **{name: quote(part) for name, part in parts.items()}
    )
    query = request.META.get("QUERY_STRING", "")
    return HttpResponsePermanentRedirect(
        f"/api/{filled}" + (f"?{query}" if query else ""), preserve_request=True
    )


urlpatterns: list[URLPattern | URLResolver] = [
    path("schema", OpenApiSchemaView.as_view(), name="schema"),
    path("docs", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
    path("", include("bonobot.accounts.api.urls")),
    path("", include("bonobot.notifications.api.urls")),
    path("", include("agents.api.client_config_snippets")),
    path("", include("agents.api.first_run")),
    path("", include("agents.api.urls")),  # first: `mcp-servers/import` is no server's id
    path("", include("mcp_servers.api.urls")),
    *(
        re_path(f"^{old}$", redirect_renamed_path, {"new_path": new})
        for old, new in RENAMED_PATHS.items()
    ),
    re_path(r"", UnknownPathView.as_view()),
]
