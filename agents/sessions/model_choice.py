"""Choose another model endpoint for one session.

Who may manage agents may choose any endpoint of the organization. All others may choose the agent's
own endpoint, and those that are `selectable`.
"""

from agents.models import Agent, ModelEndpoint
from agents.models.agents import build_agent_lookup as by_id_or_slug
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, NotFound

# Endpoints named in an error.
MAX_NAMED_ENDPOINTS = 20


def list_selectable_endpoints(principal: Principal, agent: Agent) -> list[ModelEndpoint]:
    """Return the endpoints that the principal may choose for a session of the agent."""
    endpoints = ModelEndpoint.objects.for_organization(agent.organization_id)
    return [endpoint for endpoint in endpoints if _is_selectable(principal, agent, endpoint)]


def find_selectable_endpoint(principal: Principal, agent: Agent, name: str) -> ModelEndpoint | None:
    """Return an endpoint by ID or slug; None for an empty name.

    Raises `NotFound`, and what `require_selectable` raises.
    """
    if not name:
        return None
    try:
        endpoint: ModelEndpoint = ModelEndpoint.objects.get_or_404(
            agent.organization_id, **by_id_or_slug(name)
        )
    except NotFound as problem:
        problem.field = "model_endpoint"
        raise
    require_selectable(principal, agent, endpoint)
    return endpoint


def require_selectable(principal: Principal, agent: Agent, endpoint: ModelEndpoint) -> None:
    """Raise `Forbidden` unless the principal may choose the endpoint for a session of the agent."""
    if _is_selectable(principal, agent, endpoint):
        return
    selectable_endpoints = list_selectable_endpoints(principal, agent)[:MAX_NAMED_ENDPOINTS]
    raise Forbidden(
        format_message(
            "You don't have permission to choose the model endpoint `{slug}`.", slug=endpoint.slug
        ),
        code="model_not_selectable",
        rule="model_endpoint:selectable",
        field="model_endpoint",
        remedy=format_message(
            "Choose one of: {slugs}. An operator or owner can make others selectable.",
            slugs=", ".join(selectable.slug for selectable in selectable_endpoints),
        ),
    )


def _is_selectable(principal: Principal, agent: Agent, endpoint: ModelEndpoint) -> bool:
    if endpoint.organization_id != agent.organization_id:
        return False
    is_own = endpoint.pk == agent.model_endpoint_id
    return is_own or endpoint.selectable or principal.may(Action.MANAGE_AGENTS)
