"""What is known about each kind of model endpoint without loading its library."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ProviderKind:
    """A kind of endpoint.

    `module` is in `agents.llm.providers`. If it needs an optional library, that is `library`, which
    the extra with the name of the module installs. `api_name` is for error messages. Of JSON
    Schema, the API accepts all (`full`), only objects for arguments (`object`), or a part
    (`simplified`). With `marks_cache_points`, requests mark what the provider may cache; other
    providers cache by themselves.
    """

    module: str = ""
    library: str = ""
    api_name: str = ""
    default_url: str = ""
    json_schema: Literal["full", "object", "simplified"] = "full"
    marks_cache_points: bool = False


PROVIDER_KINDS = {
    "offline": ProviderKind(),
    "openai": ProviderKind(
        module="openai",
        api_name="an OpenAI-compatible API (its URL often ends in `/v1`)",
        default_url="https://api.openai.com/v1",
    ),
    "responses": ProviderKind(
        module="openai",
        api_name="OpenAI's Responses API (its URL often ends in `/v1`)",
        default_url="https://api.openai.com/v1",
    ),
    "azure": ProviderKind(module="openai", api_name="Azure OpenAI"),
    "anthropic": ProviderKind(
        module="anthropic",
        library="anthropic",
        api_name="Anthropic's Messages API",
        default_url="https://api.anthropic.com",
        json_schema="object",
        marks_cache_points=True,
    ),
    "google": ProviderKind(
        module="google",
        library="google.genai",
        api_name="the Gemini API",
        default_url="https://generativelanguage.googleapis.com",
        json_schema="simplified",
    ),
    "vertex": ProviderKind(
        module="google",
        library="google.genai",
        api_name="Vertex AI",
        default_url="https://{region}-aiplatform.googleapis.com",
        json_schema="simplified",
    ),
    "bedrock": ProviderKind(
        module="bedrock",
        library="boto3",
        api_name="Amazon Bedrock",
        default_url="https://bedrock-runtime.{region}.amazonaws.com",
        json_schema="object",
        marks_cache_points=True,
    ),
}
