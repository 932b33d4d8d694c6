"""Models of servers, their secrets and documents, and allowed launchers."""

import hashlib
from typing import Any, ClassVar

from django.core.validators import MinValueValidator
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import (
    GovernedModel,
    GovernedQuerySet,
    OrganizationModel,
)
from bonobot.core.crypto.encrypted_fields import SealedTextField
from bonobot.ledger.actor_names import get_actor_name


class ServerQuerySet(GovernedQuerySet):
    """Filters for servers."""

    def enabled(self) -> "ServerQuerySet":
        return self.filter(enabled=True)

    def operational(self) -> "ServerQuerySet":
        """Keep enabled servers of organizations that are not halted."""
        return self.enabled().filter(organization__halted_at=None)

    def in_organization_pool(self) -> "ServerQuerySet":
        """Keep servers of the organization's pool, without agents' private ones."""
        return self.filter(scope_id=models.F("organization_id"))

    def in_scope(self, scope_id: Any) -> "ServerQuerySet":
        """Keep servers of one scope: the organization's pool or an agent."""
        return self.filter(scope_id=scope_id)

    def due_for_check(self) -> "ServerQuerySet":
        """Keep operational servers whose next check is due."""
        is_due = models.Q(next_check_at__isnull=True) | models.Q(next_check_at__lte=timezone.now())
        return self.operational().filter(is_due)


class Server(GovernedModel):
    """A registered MCP server or REST API, in the organization's pool or private to one agent.

    `scope_id` is the organization's or the owning agent's ID (no foreign key, because `agents`
    depends on this app). Names are unique in their scope. The configuration is public; values of
    headers, environment and credentials are `Secret` rows. `era`, `discovery` and status are
    observed on the connection.
    """

    class Transport(models.TextChoices):
        """The configured transport; HTTP+SSE is detected."""

        STDIO = "stdio", "stdio"
        HTTP = "http", "HTTP"
        OPENAPI = "openapi", "OpenAPI"

    class Auth(models.TextChoices):
        """How Bonobot signs in to the server."""

        NONE = "none", _("none")
        BEARER = "bearer_token", _("bearer token")
        API_KEY = "api_key", _("API key")
        OAUTH2 = "oauth2", _("OAuth 2")

    class Approval(models.TextChoices):
        """When a new definition may be called."""

        MANUAL = "manual", _("review each definition")
        FIRST = "first", _("trust the first discovery")
        ALWAYS = "always", _("trust all changes")

    class SandboxMode(models.TextChoices):
        """The required sandbox of a stdio server; it isn't started with less."""

        SANDBOX = "sandbox", _("sandbox: access only to the organization's own folders")
        NONE = "none", _("none: runs with Bonobot's own permissions")
        NAMESPACES = "namespaces", _("separate namespaces")
        BUBBLEWRAP = "bubblewrap", _("bubblewrap: read-only file system")

    class Network(models.TextChoices):
        """The network access of a sandboxed stdio server."""

        EGRESS = "egress", _("external addresses, subject to the egress rules")
        HOST = "host", _("the same network access as this host")
        NONE = "none", _("none (loopback only)")

    class Sampling(models.TextChoices):
        """Whether the server may use the agent's model (MCP sampling)."""

        OFF = "off", _("no")
        ASK = "ask", _("ask a person each time")
        ALLOW = "allow", _("yes, within its token limit")

    class SessionState(models.TextChoices):
        """Whether a program keeps state that its clients' sessions must not share."""

        AUTO = "auto", _("automatic")
        NONE = "none", _("no")
        KEPT = "kept", _("yes")

    class Status(models.TextChoices):
        """The result of the last contact."""

        CONNECTING = "connecting", _("connecting")
        CONNECTED = "connected", _("connected")
        DISCONNECTED = "disconnected", _("not connected yet")
        ERROR = "error", _("failed")
        NEEDS_REAUTH = "needs_reauth", _("needs new credentials")
        DISABLED = "disabled", _("disabled")

    observed_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "status",
            "status_code",
            "status_detail",
            "checked_at",
            "discovered_at",
            "last_connected_at",
            "latency_ms",
            "failures",
            "next_check_at",
            "server_info",
            "updated_at",
        }
    )

    scope_id = models.UUIDField(_("scope"), editable=False)
    name = models.CharField(_("name"), max_length=255)
    slug = models.SlugField(_("slug"), max_length=64)
    description = models.CharField(_("description"), max_length=500, blank=True, default="")
    transport_type = models.CharField(_("transport"), max_length=10, choices=Transport)
    endpoint_config = models.JSONField(_("endpoint"), default=dict)
    auth_type = models.CharField(
        _("authentication"), max_length=16, choices=Auth, default=Auth.NONE
    )
    auth_config = models.JSONField(_("authentication settings"), default=dict, blank=True)
    enabled = models.BooleanField(_("enabled"), default=True)
    approval = models.CharField(
        _("approval"), max_length=8, choices=Approval, default=Approval.MANUAL
    )
    only_tools = models.JSONField(
        _("only these tools"),
        default=list,
        blank=True,
        help_text=_("New tools that match no pattern are disabled."),
    )
    allow_private = models.BooleanField(
        _("private address allowed"),
        default=False,
        help_text=_("Only a platform administrator can allow a private or loopback address."),
    )
    sandbox = models.CharField(
        _("sandbox"),
        max_length=10,
        choices=SandboxMode,
        default=SandboxMode.NONE,
        db_column="confinement",
    )
    network = models.CharField(_("network"), max_length=6, choices=Network, default=Network.HOST)
    env_exceptions = models.JSONField(
        _("environment variable exceptions"),
        default=dict,
        db_default={},
        blank=True,
        help_text=_(
            "Dangerous variables that a platform administrator has allowed, with the reasons."
        ),
    )
    call_price = models.PositiveBigIntegerField(
        _("price per call"),
        default=0,
        db_default=0,
        help_text=_("In micro-dollars. Counts toward cost budgets. 0 if calls are free."),
    )
    second_price = models.PositiveBigIntegerField(
        _("price per second"),
        default=0,
        db_default=0,
        help_text=_("In micro-dollars, for each second that a call runs."),
    )
    calls_per_minute = models.PositiveIntegerField(
        _("calls per minute"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_(
            "For all callers combined. If empty, only the limits of agents and tokens apply."
        ),
    )

    sampling = models.CharField(
        _("sampling"),
        max_length=5,
        choices=Sampling,
        default=Sampling.OFF,
        db_default=Sampling.OFF,
    )
    sampling_tokens = models.PositiveIntegerField(
        _("sampling tokens per day"),
        null=True,
        blank=True,
        help_text=_(
            "Tokens that the server can use for sampling. If empty, the value from settings "
            "applies."
        ),
    )
    elicitation = models.BooleanField(
        _("allow elicitation requests"),
        default=True,
        db_default=True,
        help_text=_("Elicitation requests go to the person who runs the session."),
    )
    roots = models.BooleanField(_("share workspace path"), default=False, db_default=False)
    session_state = models.CharField(
        _("keeps session state"),
        max_length=4,
        choices=SessionState,
        default=SessionState.AUTO,
        db_default=SessionState.AUTO,
        help_text=_("If it doesn't, a client's gateway sessions share its processes."),
    )

    preset = models.ForeignKey(
        "mcp_servers.Preset",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        editable=False,
        related_name="+",
    )

    era = models.CharField(_("protocol era"), max_length=10, blank=True, default="", editable=False)
    discovery = models.JSONField(null=True, editable=False)
    server_info = models.JSONField(default=dict, editable=False)

    status = models.CharField(
        _("status"), max_length=16, choices=Status, default=Status.DISCONNECTED, editable=False
    )
    status_code = models.CharField(max_length=64, blank=True, default="", editable=False)
    status_detail = models.TextField(blank=True, default="", editable=False)
    checked_at = models.DateTimeField(_("checked"), null=True, editable=False)
    discovered_at = models.DateTimeField(_("discovered"), null=True, editable=False)
    last_connected_at = models.DateTimeField(_("last connected"), null=True, editable=False)
    latency_ms = models.PositiveIntegerField(_("latency (ms)"), null=True, editable=False)
    failures = models.PositiveIntegerField(default=0, editable=False)
    next_check_at = models.DateTimeField(null=True, editable=False, db_index=True)

    objects: ClassVar = ServerQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        verbose_name = _("MCP server")
        verbose_name_plural = _("MCP servers")
        constraints = (
            models.UniqueConstraint(fields=["scope_id", "slug"], name="server_slug_in_scope"),
            models.UniqueConstraint(fields=["scope_id", "name"], name="server_name_in_scope"),
            models.CheckConstraint(
                condition=models.Q(transport_type__in=["stdio", "http", "openapi"]),
                name="server_transport",
            ),
        )
        indexes = (models.Index(fields=["organization", "name"], name="server_by_name"),)

    def __str__(self) -> str:
        return self.name

    @property
    def interactive(self) -> bool:
        """Tell whether people sign in to this server in a browser."""
        oauth = self.auth_type == self.Auth.OAUTH2
        return oauth and self.auth_config.get("grant") == "authorization_code"

    @property
    def by_person(self) -> bool:
        """Tell whether each person signs in to this server separately."""
        return self.interactive and self.auth_config.get("per") == "user"

    @property
    def speaks_mcp(self) -> bool:
        """Tell whether it is an MCP server, not an API."""
        return self.transport_type != self.Transport.OPENAPI

    def related_secret_marks(self) -> dict[str, str]:
        """Return markers that change with the secrets, by configuration field."""
        marks: dict[str, list[str]] = {"auth_config": [], "endpoint_config": []}
        for secret in self.secrets.all():
            is_credential = secret.placement == Secret.Placement.AUTH
            config_field = "auth_config" if is_credential else "endpoint_config"
            marks[config_field].append(f"{secret.placement} {secret.name} {secret.value.mark}")
        return {config_field: "\n".join(sorted(lines)) for config_field, lines in marks.items()}

    @property
    def private_to_agent(self) -> bool:
        """Tell whether this server belongs to one agent instead of the pool."""
        return self.scope_id != self.organization_id


class Secret(GovernedModel):
    """An encrypted value of a server: a header, an environment variable or a credential.

    The name is public; no interface returns the value.
    """

    class Placement(models.TextChoices):
        """Where the value is used."""

        HEADER = "header", _("HTTP header")
        ENV = "env", _("environment variable")
        AUTH = "auth", _("credential")

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="secrets")
    placement = models.CharField(max_length=8, choices=Placement)
    name = models.CharField(max_length=255)
    value = SealedTextField()
    set_at = models.DateTimeField(_("set"), null=True)
    set_by = models.CharField(_("set by"), max_length=255, blank=True, default="", db_default="")

    class Meta:
        verbose_name = _("secret")
        verbose_name_plural = _("secrets")
        constraints = (
            models.UniqueConstraint(
                fields=["server", "placement", "name"], name="secret_once_per_place"
            ),
        )

    def __str__(self) -> str:
        return f"{self.placement} {self.name}"

    @property
    def setter_name(self) -> str:
        return get_actor_name("user", "", self.set_by)


class ApiDocument(OrganizationModel):
    """The OpenAPI document of a server, at most 4 MiB; a table of its own, so lists don't load it.

    Requests are built from approved definitions: a change here changes no request.
    """

    server = models.OneToOneField(Server, on_delete=models.CASCADE, related_name="document")
    text = models.TextField()
    digest = models.CharField(max_length=64)
    etag = models.CharField(max_length=255, blank=True, default="")
    fetched_at = models.DateTimeField(_("fetched"))

    class Meta:
        verbose_name = _("OpenAPI document")
        verbose_name_plural = _("OpenAPI documents")

    def __str__(self) -> str:
        return f"document of {self.server_id}"


def save_document(server: Server, text: str | None, etag: str = "") -> None:
    """Save a server's document; None keeps the stored one."""
    if text is not None:
        ApiDocument.objects.update_or_create(
            server=server,
            defaults={
                "organization_id": server.organization_id,
                "text": text,
                "digest": hash_document(text),
                "etag": etag,
                "fetched_at": timezone.now(),
            },
        )


def find_document(server: Server) -> ApiDocument | None:
    document: ApiDocument | None = ApiDocument.objects.filter(server=server).first()
    return document


def hash_document(text: str) -> str:
    """Return the SHA-256 digest of a document's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
