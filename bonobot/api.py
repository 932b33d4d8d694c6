"""REST under /api: where everything is, and how errors are answered (RFC 9457)."""

from http import HTTPStatus
from math import ceil
from typing import Any

from django.urls import URLPattern, URLResolver, include, path, re_path
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiJsonRenderer2
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.response import Response
from rest_framework.views import APIView

from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.sayings import say
from bonobot.lib.translating import localized
from bonobot.tenancy.api.faults import problem_of
from bonobot.tenancy.api.resources import PROBLEM_JSON, AlwaysJSON


def problem_response(error: Exception, context: dict[str, Any]) -> Response:
    """Answer any error of a view as problem details."""
    problem = problem_of(error)
    return Response(
        problem_details(problem),
        status=problem.status,
        headers=_headers(problem),
        content_type=PROBLEM_JSON,
    )


# What passes by itself: these answers always say when to come back.
COME_AGAIN = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
COME_AGAIN_S = 2.0


def problem_details(problem: Problem) -> dict[str, Any]:
    """Return the members of a problem, RFC 9457's and ours; texts in the language asked for."""
    texts = {"detail": localized(problem), "remedy": localized(problem.remedy)}
    return {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        **problem.as_dict(),
        **{name: text for name, text in texts.items() if text},
    }


def _headers(problem: Problem) -> dict[str, str]:
    headers = {"Cache-Control": "no-store"}
    if problem.status == HTTPStatus.UNAUTHORIZED:
        fault = ', error="invalid_token"' if problem.code == "bad_token" else ""
        headers["WWW-Authenticate"] = f'Bearer realm="bonobot"{fault}'
    retry_after = problem.retry_after
    if retry_after is None and problem.status in COME_AGAIN:
        retry_after = COME_AGAIN_S
    if retry_after is not None:
        headers["Retry-After"] = str(max(1, ceil(retry_after)))
    return headers


class Nowhere(APIView):
    """Every address below /api/ that isn't one."""

    authentication_classes = ()
    permission_classes = ()
    content_negotiation_class = AlwaysJSON

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Answer 404 to any method."""
        raise NotFound(
            say("There is nothing at {path}.", path=request.path[:200]),
            code="unknown_path",
            remedy="Paths have no trailing slash; /api/schema lists them all.",
        )


@extend_schema(exclude=True)
class Schema(SpectacularAPIView):
    """The OpenAPI document, as JSON."""

    renderer_classes = [OpenApiJsonRenderer2, OpenApiJsonRenderer]


urlpatterns: list[URLPattern | URLResolver] = [
    path("schema", Schema.as_view(), name="schema"),
    path("docs", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
    path("", include("bonobot.tenancy.api.urls")),
    path("", include("bonobot.notices.api.urls")),
    path("", include("bonobot.gateway.api")),
    path("", include("bonobot.first_run_api")),
    path("", include("agents.api.urls")),  # first: `mcp-servers/import` is no server's id
    path("", include("mcp_servers.api.urls")),
    re_path(r"", Nowhere.as_view()),
]
