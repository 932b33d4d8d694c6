"""Model of model endpoints."""

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import GovernedModel
from bonobot.core.crypto.encrypted_fields import SealedTextField


class ModelEndpoint(GovernedModel):
    """A language model for agents, at a known provider or offline.

    Prices are micro-dollars per million tokens; None: from the bundled price list. The cache prices
    apply with the endpoint's own prices only; None: the input price, and 125% of it for writes. If
    the model fails, `fallback` is used, then its own fallback. Answers have at most `max_tokens`;
    None: the model's default, or 4,096 with a budget. `context_window` is the limit for a request
    and its answer; None: from the bundled list of models. Members can choose a `selectable`
    endpoint for a session of any agent that they may run.
    """

    class Kind(models.TextChoices):
        """The API of the provider."""

        OFFLINE = "offline", _("offline (built in, not a language model)")
        OPENAI = "openai", _("OpenAI-compatible")
        RESPONSES = "responses", _("OpenAI Responses API")
        AZURE = "azure", _("Azure OpenAI")
        ANTHROPIC = "anthropic", _("Anthropic")
        GOOGLE = "google", _("Google Gemini API")
        VERTEX = "vertex", _("Google Vertex AI")
        BEDROCK = "bedrock", _("Amazon Bedrock")

    class Thinking(models.TextChoices):
        """The amount of reasoning before the answer."""

        DEFAULT = "", _("model default")
        OFF = "off", _("off, or as little as possible")
        LOW = "low", _("low")
        MEDIUM = "medium", _("medium")
        HIGH = "high", _("high")

    class FallbackOn(models.TextChoices):
        """Which failures use the fallback."""

        UNAVAILABLE = "unavailable", _("unreachable, overloaded, failing, or not responding")
        ANY = "any", _("any failure of the model, including rejected credentials and requests")

    name = models.CharField(_("name"), max_length=255)
    slug = models.SlugField(_("slug"), max_length=64)
    kind = models.CharField(_("type"), max_length=16, choices=Kind, default=Kind.OPENAI)
    base_url = models.CharField(_("base URL"), blank=True, default="", max_length=500)
    api_key = SealedTextField(_("API key"), blank=True, default="")
    model = models.CharField(_("model"), max_length=255, blank=True, default="")
    allow_private = models.BooleanField(_("private address allowed"), default=False)
    timeout_s = models.PositiveIntegerField(
        _("timeout (s)"), default=120, validators=[MinValueValidator(1)]
    )
    input_price = models.PositiveBigIntegerField(_("input price"), null=True, blank=True)
    output_price = models.PositiveBigIntegerField(_("output price"), null=True, blank=True)
    cache_read_price = models.PositiveBigIntegerField(_("cache read price"), null=True, blank=True)
    cache_write_price = models.PositiveBigIntegerField(
        _("cache write price"), null=True, blank=True
    )
    max_tokens = models.PositiveIntegerField(
        _("max answer (tokens)"), null=True, blank=True, validators=[MinValueValidator(1)]
    )
    context_window = models.PositiveIntegerField(
        _("context window (tokens)"), null=True, blank=True, validators=[MinValueValidator(1)]
    )
    region = models.CharField(_("region"), blank=True, default="", max_length=64)
    access_key_id = models.CharField(_("access key ID"), blank=True, default="", max_length=128)
    api_version = models.CharField(_("API version"), blank=True, default="", max_length=32)
    thinking = models.CharField(
        _("thinking"), max_length=8, choices=Thinking, blank=True, default=Thinking.DEFAULT
    )
    thinking_summaries = models.BooleanField(
        _("thinking summaries"), default=False, db_default=False
    )
    native_tools = models.BooleanField(_("native tool calls"), default=True)
    image_input = models.BooleanField(_("image input"), default=False, db_column="sees_images")
    pdf_input = models.BooleanField(_("PDF input"), default=False, db_default=False)
    prompt_caching = models.BooleanField(_("prompt caching"), default=True, db_default=True)
    retries = models.PositiveSmallIntegerField(
        _("retries"), default=2, validators=[MaxValueValidator(10)]
    )
    fallback = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="fallback_of",
        verbose_name=_("fallback"),
    )
    fallback_on = models.CharField(
        _("fallback condition"),
        max_length=16,
        choices=FallbackOn,
        default=FallbackOn.UNAVAILABLE,
        db_column="falls_over",
    )
    selectable = models.BooleanField(_("selectable for sessions"), default=False, db_default=False)

    class Meta:
        ordering = ("name",)
        verbose_name = _("model endpoint")
        verbose_name_plural = _("model endpoints")
        constraints = (
            models.UniqueConstraint(fields=["organization", "slug"], name="endpoint_slug"),
        )

    def __str__(self) -> str:
        return self.name
