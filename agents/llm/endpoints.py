"""Where a model is and how it is asked: an endpoint's facts, without its row. Pure."""

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "offline", "openai", "responses", "azure", "anthropic", "google", "vertex", "bedrock"
]

# Where requests go without a base URL.
HOMES: dict[str, str] = {
    "openai": "https://api.openai.com/v1",
    "responses": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "google": "https://generativelanguage.googleapis.com",
    "vertex": "https://{region}-aiplatform.googleapis.com",
    "bedrock": "https://bedrock-runtime.{region}.amazonaws.com",
}
# Vertex AI's host without a region.
GLOBAL = "https://aiplatform.googleapis.com"


@dataclass(frozen=True)
class Endpoint:
    """Where a model is and how to reach it; prices are micro-dollars per million tokens.

    `api_key` is the provider's secret: a key; of Bedrock the secret access key that belongs to
    `access_key_id`, or a Bedrock key without one; of Vertex AI a service account's JSON.
    `timeout_s` bounds one whole request, the reading of a streamed answer included. `thinking` is
    "" (as the model does by itself), "off", or an effort. `retries` and `falls_over` are for the
    session: a model is asked once.
    """

    kind: Kind
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    model: str = ""
    timeout_s: float = 120.0
    allow_private: bool = False
    input_price: int | None = None
    output_price: int | None = None
    id: str = ""
    name: str = ""
    region: str = ""
    access_key_id: str = ""
    api_version: str = ""
    max_tokens: int | None = None
    context_window: int | None = None
    thinking: str = ""
    native_tools: bool = True
    sees_images: bool = False
    retries: int = 0
    falls_over: str = "unavailable"

    @property
    def url(self) -> str:
        """Return where requests go; without a base URL that is the provider itself."""
        if self.base_url:
            return self.base_url
        if self.kind == "vertex" and self.region in ("", "global"):
            return GLOBAL
        return HOMES.get(self.kind, "").format(region=self.region)

    @property
    def origin(self) -> str:
        """Return whose words an answer's private parts are: nobody else gets them."""
        return f"{self.kind} {self.url} {self.model}"

    @property
    def title(self) -> str:
        """Return how people know it."""
        return self.name or self.model or self.kind
