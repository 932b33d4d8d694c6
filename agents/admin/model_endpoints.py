"""Model endpoints in the admin."""

from typing import Any

from django import forms
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.text import format_lazy
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.llm.provider_kinds import PROVIDER_KINDS
from agents.model_endpoints.services import (
    BOUNDS,
    KINDS_WITH_OWN_URL,
    ModelEndpointSpec,
    delete_endpoint,
    save_endpoint,
)
from agents.model_endpoints.try_endpoint import try_endpoint
from agents.models import ModelEndpoint
from bonobot.accounts.admin_base import ServiceFormAdmin, render_screen
from bonobot.accounts.admin_base.dollar_field import DollarField
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import SecretInput, display, register
from bonobot.core.problems import Problem
from bonobot.core.text.masking import MASK
from bonobot.core.text.untrusted_text import make_visible

PROVIDER_FIELDS = (
    "name",
    "kind",
    "model",
    "base_url",
    "api_version",
    "region",
    "access_key_id",
    "key",
)
RESPONSE_FIELDS = (
    "thinking",
    "thinking_summaries",
    "max_tokens",
    "context_window",
    "native_tools",
    "image_input",
    "pdf_input",
    "prompt_caching",
    "timeout_s",
)
FAILURE_FIELDS = ("retries", "fallback", "fallback_on")
COST_FIELDS = (
    *("input_price", "output_price", "cache_read_price", "cache_write_price"),
    *("selectable", "allow_private"),
)
Kind = ModelEndpoint.Kind
MODEL_KINDS = tuple(kind for kind in Kind if kind != Kind.OFFLINE)
# The providers that use a field; the form shows it for these.
KINDS_BY_FIELD = {
    "model": MODEL_KINDS,
    "base_url": MODEL_KINDS,
    "key": MODEL_KINDS,
    "api_version": (Kind.AZURE,),
    "region": (Kind.VERTEX, Kind.BEDROCK),
    "access_key_id": (Kind.BEDROCK,),
    "prompt_caching": tuple(kind for kind in Kind if PROVIDER_KINDS[kind].marks_cache_points),
    "thinking_summaries": (Kind.RESPONSES, Kind.ANTHROPIC, Kind.GOOGLE, Kind.VERTEX),
}
FIELDS = (*PROVIDER_FIELDS, *RESPONSE_FIELDS, *FAILURE_FIELDS, *COST_FIELDS)


def _join_help_texts(*parts: tuple[tuple[ModelEndpoint.Kind, ...], Any]) -> Any:
    """Return help texts of which the page shows those of the selected provider."""
    spans = [f'<span data-shows="{_format_condition(kinds)}">{{}}</span>' for kinds, _text in parts]
    return format_lazy(" ".join(spans), *(text for _kinds, text in parts))


def _format_condition(kinds: tuple[ModelEndpoint.Kind, ...]) -> str:
    return f"kind={'|'.join(kinds)}"


class ModelEndpointForm(forms.ModelForm):
    """A model endpoint; the stored key is kept if its field still has the mask."""

    # Set by the admin for each request.
    organization_id: Any = None

    key = forms.CharField(
        label=_("API key"),
        required=False,
        widget=SecretInput(),
        help_text=_join_help_texts(
            (MODEL_KINDS, _("Encrypted when saved and never shown again.")),
            ((Kind.VERTEX,), _("For Vertex AI, the JSON of a service account.")),
            ((Kind.BEDROCK,), _("For Bedrock, the secret access key or a Bedrock API key.")),
        ),
    )

    input_price = DollarField(
        label=_("Input price"),
        max_microusd=BOUNDS["input_price"][1],
        help_text=_("Dollars per million tokens. If empty, the bundled price list applies."),
    )
    output_price = DollarField(
        label=_("Output price"),
        max_microusd=BOUNDS["output_price"][1],
        help_text=_("Dollars per million tokens. If empty, the bundled price list applies."),
    )
    cache_read_price = DollarField(
        label=_("Cache read price"),
        max_microusd=BOUNDS["cache_read_price"][1],
        help_text=_(
            "Dollars per million input tokens read from the provider's cache. Used with the "
            "prices above. If empty, the input price applies."
        ),
    )
    cache_write_price = DollarField(
        label=_("Cache write price"),
        max_microusd=BOUNDS["cache_write_price"][1],
        help_text=_(
            "Dollars per million input tokens written to the provider's cache. Used with the "
            "prices above. If empty, 125% of the input price applies."
        ),
    )

    class Meta:
        model = ModelEndpoint
        fields = tuple(name for name in FIELDS if name != "key")
        help_texts = {
            "kind": _join_help_texts(
                (
                    tuple(kind for kind in Kind if PROVIDER_KINDS[kind].library),
                    _(
                        "Anthropic, Google, and Amazon each require a library. If it's missing, "
                        "an error names it when you save."
                    ),
                ),
            ),
            "base_url": _join_help_texts(
                (
                    (Kind.OPENAI,),
                    _(
                        "For an OpenAI-compatible service, its base URL, such as "
                        "https://api.openai.com/v1."
                    ),
                ),
                ((Kind.AZURE,), _("For Azure, the resource: https://NAME.openai.azure.com.")),
                (KINDS_WITH_OWN_URL, _("Leave empty to use the provider's own URL.")),
            ),
            "model": _join_help_texts(
                ((Kind.OPENAI, Kind.RESPONSES), _("Such as gpt-5-mini or qwen3:8b.")),
                ((Kind.AZURE,), _("For Azure, the name of the deployment.")),
                ((Kind.ANTHROPIC,), _("For Anthropic, such as claude-opus-5.")),
                ((Kind.GOOGLE, Kind.VERTEX), _("For Google, such as gemini-3-pro.")),
                ((Kind.BEDROCK,), _("For Bedrock, the model or inference profile ID.")),
            ),
            "access_key_id": _(
                "For Bedrock, the access key ID. Enter its secret as the API key. Leave empty "
                "to use a Bedrock API key."
            ),
            "region": _join_help_texts(
                ((Kind.BEDROCK,), _("For Bedrock, such as eu-central-1.")),
                (
                    (Kind.VERTEX,),
                    _("For Vertex AI, such as europe-west4. Leave empty for global."),
                ),
            ),
            "api_version": _("For Azure, such as 2024-10-21. Leave empty for Azure's v1 API."),
            "thinking": _(
                "How much the model reasons before it answers, if it supports this. Readable "
                "thinking is shown collapsed in sessions."
            ),
            "thinking_summaries": _(
                "Asks Anthropic, Google, and OpenAI's Responses API for readable thinking. OpenAI "
                "requires a verified organization for some models."
            ),
            "max_tokens": _(
                "If empty, the model's default applies, or 4,096 if there is a budget."
            ),
            "context_window": _(
                "Maximum tokens for a request and its response combined. If empty, the "
                "value from the bundled model list applies. Longer conversations are "
                "compacted."
            ),
            "native_tools": _("If disabled, tools are described in the prompt and called in XML."),
            "image_input": _("If disabled, images from tools are replaced with text."),
            "pdf_input": _("If disabled, messages with PDF files are refused."),
            "prompt_caching": _(
                "For Anthropic and Bedrock, marks tools, instructions, and earlier turns as "
                "cacheable. Other providers cache automatically."
            ),
            "retries": _("Maximum retries for a failed request, if retrying can help."),
            "fallback": _(
                "Used if this endpoint fails. If the fallback fails too, its own fallback is used."
            ),
            "selectable": _(
                "Members can choose this endpoint when they start a session. Operators and "
                "owners can choose any endpoint."
            ),
            "allow_private": _(
                "For Ollama or vLLM on your own network. Platform administrators only."
            ),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.api_key and "key" in self.fields:
            self.fields["key"].initial = MASK
        if "fallback" in self.fields:
            self._set_fallback_choices()
        for name, kinds in KINDS_BY_FIELD.items():
            if name in self.fields:
                self.fields[name].widget.attrs["data-shows"] = _format_condition(kinds)

    def clean(self) -> dict[str, Any]:
        """Clear what another provider needs: the page doesn't show it."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        unused = {
            name
            for name in ("api_version", "region", "access_key_id")
            if values.get("kind") not in KINDS_BY_FIELD[name]
        }
        return values | dict.fromkeys(unused & values.keys(), "")

    def _set_fallback_choices(self) -> None:
        """Offer the other endpoints of the organization."""
        field: Any = self.fields["fallback"]
        endpoints = ModelEndpoint.objects.for_organization(self.organization_id)
        field.queryset = endpoints.exclude(pk=self.instance.pk)


@register(ModelEndpoint)
class ModelEndpointAdmin(ServiceFormAdmin):
    """The active organization's model endpoints."""

    add_label = _("Add model")
    needs_to_change = Action.MANAGE_AGENTS
    has_bulk_actions = False  # an endpoint is deleted on its own page, which can show errors
    delete_note = _("Its API key is deleted too.")
    delete_obstacle_note = _("Choose another model for these first. Then you can delete it.")
    form = ModelEndpointForm
    fieldsets = (
        (None, {"fields": PROVIDER_FIELDS}),
        (_("Responses"), {"fields": RESPONSE_FIELDS}),
        (_("Failure handling"), {"fields": FAILURE_FIELDS}),
        (_("Cost and network"), {"fields": COST_FIELDS}),
    )
    problem_fields = {"api_key": "key"}
    list_display = ("name", "kind", "model", "address", "has_key", "fallback", "used_by", "test")
    change_columns = {"test": ""}
    list_select_related = ("fallback",)
    list_filter = ("kind",)
    search_fields = ("name", "model", "base_url")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ModelEndpoint]:
        """Return the endpoints with the number of agents that use them."""
        return super().get_queryset(request).annotate(agent_count=Count("agents"))

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """Return the form with the fallbacks of the active organization."""
        form = super().get_form(request, obj, change, **kwargs)
        organization_id = self.get_principal(request).organization_id
        return type(form.__name__, (form,), {"organization_id": organization_id})

    @display(description=_("URL"), ordering="base_url")
    def address(self, endpoint: ModelEndpoint) -> str:
        return make_visible(endpoint.base_url, 80) or "–"

    @display(description=_("API key"))
    def key(self, endpoint: ModelEndpoint) -> str:
        """Return whether a key is stored, for people who may not change the endpoint."""
        return self.has_key(endpoint)

    @display(description=_("API key"))
    def has_key(self, endpoint: ModelEndpoint) -> str:
        return _t("configured") if endpoint.api_key else _t("none")

    @display(description=_("agents"), ordering="agent_count")
    def used_by(self, endpoint: Any) -> int:
        """Return how many agents use it."""
        return int(endpoint.agent_count)

    @display(description=_("action"))
    def test(self, endpoint: ModelEndpoint) -> str:
        address = reverse("admin:agents_modelendpoint_test", args=[endpoint.pk])
        return format_html('<a class="bb-button bb-slim" href="{}">{}</a>', address, _t("Test"))

    def get_urls(self) -> list[Any]:
        """Add the page that tests an endpoint."""
        view = self.admin_site.admin_view(self.try_view)
        test_url = path("<uuid:object_id>/try/", view, name="agents_modelendpoint_test")
        return [test_url, *super().get_urls()]

    def try_view(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        """Send a short request to the endpoint and show the result."""
        principal = self.get_principal(request)
        principal.require(Action.MANAGE_AGENTS)
        endpoint: ModelEndpoint = ModelEndpoint.objects.get_or_404(
            principal.organization_id, pk=object_id
        )
        test_result = problem = None
        if request.method == "POST":
            try:
                test_result = try_endpoint(principal, endpoint)
            except Problem as exc:
                problem = exc
        return render_screen(
            request,
            "model_endpoints/try_endpoint.html",
            title=_("Test model"),
            opts=self.opts,
            object=endpoint,
            endpoint=endpoint,
            test_result=test_result,
            problem=problem,
        )

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> ModelEndpoint:
        """Save through the service."""
        values = {name: form.cleaned_data[name] for name in FIELDS if name != "key"}
        existing_endpoint = ModelEndpoint.objects.get(pk=form.instance.pk) if change else None
        key = form.cleaned_data.get("key", "")
        return save_endpoint(
            self.get_principal(request),
            ModelEndpointSpec(**values, api_key=key),
            endpoint=existing_endpoint,
        )

    def delete_model(self, request: HttpRequest, obj: ModelEndpoint) -> None:
        """Delete through the service, which refuses while an agent uses it."""
        delete_endpoint(self.get_principal(request), obj)
