"""The forms of the first run: a model that is asked at once, and an agent with all it needs."""

from typing import Any

from django import forms
from django.db import transaction
from django.utils.translation import gettext_lazy as _

from agents.bindings import bind
from agents.models import Agent, ModelEndpoint
from agents.registration import AgentSpec, EndpointSpec, add_agent, save_endpoint
from agents.tool_policies import PolicyText, set_policy
from bonobot.lib.admin import Checkbox, SecretInput, Select, Textarea, TextInput
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.models import Server

OFFERED = 50
INSTRUCTIONS = _("Use your tools. Say plainly what you did, and what did not work.")
EVERY_TOOL_OF_SERVERS = "mcp_*"


class ModelForm(forms.Form):
    """A model endpoint, with what most need; the rest is on its own page."""

    name = forms.CharField(label=_("Name"), max_length=255, widget=TextInput)
    kind = forms.ChoiceField(
        label=_("Kind"), choices=ModelEndpoint.Kind.choices, initial="openai", widget=Select
    )
    base_url = forms.CharField(
        label=_("Address"),
        required=False,
        widget=TextInput(attrs={"placeholder": "https://api.openai.com/v1"}),
        help_text=_("Empty: the provider's own."),
    )
    model = forms.CharField(label=_("Model"), max_length=255, widget=TextInput)
    api_key = forms.CharField(
        label=_("API key"),
        required=False,
        widget=SecretInput(),
        help_text=_("Sealed when it is saved, and never shown again."),
    )
    allow_private = forms.BooleanField(
        label=_("Allow a private or loopback address"),
        required=False,
        widget=Checkbox,
        help_text=_("For Ollama or vLLM in your own network; platform administrators."),
    )

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Let platform administrators alone allow private addresses."""
        super().__init__(*args, **kwargs)
        may_allow = principal.may(Action.ALLOW_PRIVATE_ADDRESS)
        self.fields["allow_private"].disabled = not may_allow

    def save(self, principal: Principal) -> ModelEndpoint:
        """Save it; one of the same name is changed, so that a mistake is corrected here."""
        mine = ModelEndpoint.objects.for_organization(principal.organization_id)
        said = dict(self.cleaned_data)
        stored = mine.filter(name=said["name"]).first()
        found: ModelEndpoint = save_endpoint(principal, EndpointSpec(**said), endpoint=stored)
        return found


class AgentForm(forms.Form):
    """An agent with its model, its servers and what it may call."""

    name = forms.CharField(label=_("Name"), max_length=255, widget=TextInput)
    instructions = forms.CharField(
        label=_("Instructions"),
        required=False,
        initial=INSTRUCTIONS,
        max_length=100_000,
        widget=Textarea(attrs={"rows": 4}),
    )
    model_endpoint = forms.ModelChoiceField(
        label=_("Model"), queryset=ModelEndpoint.objects.none(), widget=Select, empty_label=None
    )
    servers = forms.ModelMultipleChoiceField(
        label=_("Servers"),
        queryset=Server.objects.none(),
        widget=forms.CheckboxSelectMultiple(attrs={"class": "bb-tick"}),
        help_text=_("It may call their approved tools; the policy of the agent narrows that."),
    )

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Offer the organization's models, and the servers of its pool."""
        super().__init__(*args, **kwargs)
        here = principal.organization_id
        models: Any = self.fields["model_endpoint"]
        models.queryset = ModelEndpoint.objects.for_organization(here)
        servers: Any = self.fields["servers"]
        pool = Server.objects.in_scope(here).filter(enabled=True).order_by("name")
        offered = list(pool.values_list("pk", flat=True)[:OFFERED])
        servers.queryset = pool.filter(pk__in=offered)
        servers.required = bool(offered)  # whoever skipped that step makes an agent without

    def save(self, principal: Principal) -> Agent:
        """Make the agent, give it the servers and let it call their tools; all or nothing."""
        said = self.cleaned_data
        with transaction.atomic():
            agent = add_agent(
                principal,
                AgentSpec(
                    name=said["name"],
                    instructions=said["instructions"],
                    model_endpoint=said["model_endpoint"],
                ),
            )
            for server in said["servers"]:
                bind(principal, agent, server)
            set_policy(principal, agent, PolicyText("allowlist", allow=(EVERY_TOOL_OF_SERVERS,)))
        return agent
