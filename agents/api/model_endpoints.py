"""Model endpoints."""

from dataclasses import replace
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.response import Response

from agents.llm.interface import ModelError
from agents.model_endpoints.services import (
    BOUNDS,
    ModelEndpointSpec,
    build_spec,
    delete_endpoint,
    save_endpoint,
)
from agents.model_endpoints.try_endpoint import try_endpoint
from agents.models import ModelEndpoint
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, ResourceView
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer
from bonobot.core.text.masking import MASK

MAX_TOKENS_HELP = (
    "Maximum tokens of a response; null: the model's default, or 4096 if a budget applies."
)
CONTEXT_WINDOW_HELP = (
    "Context window in tokens, including the response; null: from the bundled model list."
)
SELECTABLE_HELP = (
    "Whether members can choose it for their sessions. Operators and owners can choose any."
)
PRICE_HELP = "Micro-dollars per million tokens; null: from the bundled price list."
CACHE_READ_PRICE_HELP = (
    "Micro-dollars per million input tokens read from the provider's cache, used with "
    "`input_price`; null: the input price."
)
CACHE_WRITE_PRICE_HELP = (
    "Micro-dollars per million input tokens written to the provider's cache, used with "
    "`input_price`; null: 125% of the input price."
)
THINKING_SUMMARIES_HELP = (
    "Asks Anthropic, Google, and OpenAI's Responses API for readable thinking."
)
PDF_INPUT_HELP = "Whether the model accepts PDF files. False: messages with them are refused."
PROMPT_CACHING_HELP = (
    "For Anthropic and Bedrock: marks tools, instructions, and earlier turns as cacheable."
)


def _build_number_field(name: str, **options: Any) -> serializers.IntegerField:
    smallest, largest = BOUNDS[name]
    return serializers.IntegerField(
        required=False, min_value=smallest, max_value=largest, **options
    )


def _build_nullable_field(name: str, help_text: str = PRICE_HELP) -> serializers.IntegerField:
    return _build_number_field(name, allow_null=True, help_text=help_text)


class ModelEndpointBody(VersionedBody):
    """A model endpoint to create or update."""

    name = serializers.CharField(max_length=255)
    kind = serializers.ChoiceField(ModelEndpoint.Kind.choices, required=False)
    base_url = serializers.CharField(required=False, allow_blank=True, max_length=500)
    model = serializers.CharField(required=False, allow_blank=True, max_length=255)
    api_key = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=10_000,
        write_only=True,
        help_text=f"Unchanged if omitted or `{MASK}`; empty: deleted.",
    )
    allow_private = serializers.BooleanField(required=False)
    timeout_s = _build_number_field("timeout_s")
    input_price = _build_nullable_field("input_price")
    output_price = _build_nullable_field("output_price")
    cache_read_price = _build_nullable_field("cache_read_price", CACHE_READ_PRICE_HELP)
    cache_write_price = _build_nullable_field("cache_write_price", CACHE_WRITE_PRICE_HELP)
    region = serializers.CharField(
        required=False, allow_blank=True, max_length=64, help_text="For Bedrock and Vertex AI."
    )
    access_key_id = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=128,
        help_text="For Bedrock; the secret key is `api_key`.",
    )
    api_version = serializers.CharField(
        required=False, allow_blank=True, max_length=32, help_text="For Azure; empty: the v1 API."
    )
    max_tokens = _build_nullable_field("max_tokens", MAX_TOKENS_HELP)
    context_window = _build_nullable_field("context_window", CONTEXT_WINDOW_HELP)
    thinking = serializers.ChoiceField(
        ModelEndpoint.Thinking.choices, required=False, allow_blank=True
    )
    thinking_summaries = serializers.BooleanField(required=False, help_text=THINKING_SUMMARIES_HELP)
    native_tools = serializers.BooleanField(
        required=False, help_text="False: tools are described in the prompt, and called in XML."
    )
    image_input = serializers.BooleanField(required=False)
    pdf_input = serializers.BooleanField(required=False, help_text=PDF_INPUT_HELP)
    prompt_caching = serializers.BooleanField(required=False, help_text=PROMPT_CACHING_HELP)
    retries = _build_number_field("retries")
    fallback = serializers.UUIDField(
        required=False,
        allow_null=True,
        help_text="Model endpoint that is used if this one fails.",
    )
    fallback_on = serializers.ChoiceField(ModelEndpoint.FallbackOn.choices, required=False)
    selectable = serializers.BooleanField(required=False, help_text=SELECTABLE_HELP)


class ModelEndpointSerializer(VersionedSerializer):
    """A model endpoint; the API key is masked."""

    body_classes = (ModelEndpointBody,)

    id = serializers.UUIDField()
    name = serializers.CharField()
    slug = serializers.CharField()
    kind = serializers.ChoiceField(ModelEndpoint.Kind.choices)
    base_url = serializers.CharField()
    model = serializers.CharField()
    api_key = serializers.SerializerMethodField(help_text=f"`{MASK}`, or empty if there is none.")
    allow_private = serializers.BooleanField()
    timeout_s = serializers.IntegerField()
    input_price = serializers.IntegerField(allow_null=True, help_text=PRICE_HELP)
    output_price = serializers.IntegerField(allow_null=True, help_text=PRICE_HELP)
    cache_read_price = serializers.IntegerField(allow_null=True, help_text=CACHE_READ_PRICE_HELP)
    cache_write_price = serializers.IntegerField(allow_null=True, help_text=CACHE_WRITE_PRICE_HELP)
    region = serializers.CharField()
    access_key_id = serializers.CharField()
    api_version = serializers.CharField()
    max_tokens = serializers.IntegerField(allow_null=True, help_text=MAX_TOKENS_HELP)
    context_window = serializers.IntegerField(allow_null=True, help_text=CONTEXT_WINDOW_HELP)
    thinking = serializers.ChoiceField(ModelEndpoint.Thinking.choices, allow_blank=True)
    thinking_summaries = serializers.BooleanField(help_text=THINKING_SUMMARIES_HELP)
    native_tools = serializers.BooleanField()
    image_input = serializers.BooleanField()
    pdf_input = serializers.BooleanField(help_text=PDF_INPUT_HELP)
    prompt_caching = serializers.BooleanField(help_text=PROMPT_CACHING_HELP)
    retries = serializers.IntegerField()
    fallback = serializers.UUIDField(source="fallback_id", allow_null=True)
    fallback_on = serializers.ChoiceField(ModelEndpoint.FallbackOn.choices)
    selectable = serializers.BooleanField(help_text=SELECTABLE_HELP)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()

    @extend_schema_field(str)
    def get_api_key(self, endpoint: ModelEndpoint) -> str:
        """Return the mask, or nothing."""
        return MASK if endpoint.api_key else ""


class EndpointTestErrorSerializer(StrictSerializer):
    """Why the model didn't respond, and what to do."""

    code = serializers.CharField()
    detail = serializers.CharField()
    remedy = serializers.CharField()


class EndpointTestSerializer(StrictSerializer):
    """The result of a test request to a model endpoint."""

    status = serializers.ChoiceField([("ok", "ok"), ("error", "error")])
    answer = serializers.CharField(allow_null=True, help_text="The beginning of the response.")
    duration_ms = serializers.IntegerField(allow_null=True)
    input_tokens = serializers.IntegerField(allow_null=True)
    output_tokens = serializers.IntegerField(allow_null=True)
    cached_tokens = serializers.IntegerField(
        allow_null=True, help_text="The part of the input read from the provider's cache."
    )
    cost_microusd = serializers.IntegerField(
        allow_null=True, help_text="In millionths of a dollar."
    )
    error = EndpointTestErrorSerializer(allow_null=True)


class ModelEndpointListView(ResourceView):
    """All model endpoints."""

    rules = {"GET": READ, "POST": Action.MANAGE_AGENTS}
    ordering = ("name", "pk")
    orderings = ("name", "kind", "model", "created_at", "updated_at")

    @describe_operation("list_model_endpoints", answer=ModelEndpointSerializer(many=True))
    def get(self, request: object) -> Response:
        """List model endpoints."""
        rows = ModelEndpoint.objects.for_organization(self.organization_id)
        return self.respond_page(rows, ModelEndpointSerializer)

    @describe_operation(
        "create_model_endpoint", body=ModelEndpointBody, answer=ModelEndpointSerializer, status=201
    )
    def post(self, request: object) -> Response:
        """Create a model endpoint for a known provider or the offline model."""
        spec = ModelEndpointSpec(**_read_settings(self))
        return self.respond_row(
            save_endpoint(self.principal, spec), ModelEndpointSerializer, status=201
        )


class ModelEndpointDetailView(ResourceView):
    """One model endpoint."""

    rules = {
        "GET": READ,
        "PUT": Action.MANAGE_AGENTS,
        "PATCH": Action.MANAGE_AGENTS,
        "DELETE": Action.MANAGE_AGENTS,
    }

    @describe_operation("get_model_endpoint", answer=ModelEndpointSerializer)
    def get(self, request: object, endpoint_id: str) -> Response:
        """Get a model endpoint; the API key is masked."""
        endpoint = self.get_row(ModelEndpoint, endpoint_id=endpoint_id)
        return self.respond_row(endpoint, ModelEndpointSerializer)

    @describe_operation(
        "replace_model_endpoint", body=ModelEndpointBody, answer=ModelEndpointSerializer
    )
    def put(self, request: object, endpoint_id: str) -> Response:
        """Replace a model endpoint; an omitted or masked API key is unchanged."""
        return self._update_endpoint(endpoint_id, partial=False)

    @describe_operation(
        "update_model_endpoint", body=ModelEndpointBody, answer=ModelEndpointSerializer
    )
    def patch(self, request: object, endpoint_id: str) -> Response:
        """Update a model endpoint."""
        return self._update_endpoint(endpoint_id, partial=True)

    @describe_operation("delete_model_endpoint", status=204)
    def delete(self, request: object, endpoint_id: str) -> Response:
        """Delete a model endpoint that isn't used by an agent."""
        delete_endpoint(self.principal, self.get_row(ModelEndpoint, endpoint_id=endpoint_id))
        return Response(status=204)

    def _update_endpoint(self, endpoint_id: str, *, partial: bool) -> Response:
        endpoint = self.get_row(ModelEndpoint, endpoint_id=endpoint_id)
        spec = replace(build_spec(endpoint), **_read_settings(self, partial=partial))
        return self.respond_row(
            save_endpoint(self.principal, spec, endpoint), ModelEndpointSerializer
        )


class TestModelEndpointView(ResourceView):
    """Test of one model endpoint."""

    __test__ = False
    rules = {"POST": Action.MANAGE_AGENTS}

    @describe_operation("test_model_endpoint", answer=EndpointTestSerializer)
    def post(self, request: object, endpoint_id: str) -> Response:
        """Test a model endpoint.

        Sends a short request, which is recorded in the audit log and has a cost. If the model
        doesn't respond, the status code is still 200. The response has the status `error`, a code,
        and a remedy.
        """
        empty_result: dict[str, Any] = dict.fromkeys(EndpointTestSerializer().fields)
        endpoint = self.get_row(ModelEndpoint, endpoint_id=endpoint_id)
        try:
            test_result = try_endpoint(self.principal, endpoint)
        except ModelError as problem:
            fault = {"code": problem.code, "detail": str(problem), "remedy": problem.remedy}
            return Response(empty_result | {"status": "error", "error": fault})
        return Response(empty_result | {"status": "ok"} | test_result.as_dict())


def _read_settings(view: ResourceView, *, partial: bool = False) -> dict[str, Any]:
    """Return the settings of the body, with its fallback endpoint; raises `NotFound`."""
    body = view.read_body(ModelEndpointBody, partial=partial)
    if body.get("fallback") is not None:
        body["fallback"] = view.get_row(ModelEndpoint, fallback=str(body["fallback"]))
    return body
