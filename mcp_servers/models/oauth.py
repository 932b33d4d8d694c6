"""Models of OAuth tokens, client registrations and logins at servers.

Tokens are encrypted in the database, so that all processes share them; a lease on the row lets one
process at a time renew them.
"""

from datetime import timedelta
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel
from bonobot.core.crypto.encrypted_fields import SealedTextField
from mcp_servers.models.servers import Server

MAX_ISSUER_LENGTH = 500


class OAuthGrant(OrganizationModel):
    """The tokens of one server for one subject: the organization, or one person.

    `binding` is a digest of the URL and sign-in that the tokens were issued for; with another one
    they are invalid. `version` counts renewals, so that a process whose token was rejected knows
    whether another one has renewed it. `signed_in_at` is the last login, possibly of another
    account; None if no person signs in.
    """

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="grants")
    subject = models.UUIDField(_("subject"))
    binding = models.CharField(max_length=64, blank=True, default="")
    issuer = models.CharField(_("issuer"), max_length=MAX_ISSUER_LENGTH, blank=True, default="")
    client_id = models.CharField(_("client ID"), max_length=2048, blank=True, default="")
    authorization_server = models.JSONField(default=dict, db_column="authority")
    access_token = SealedTextField(blank=True, default="")
    refresh_token = SealedTextField(blank=True, default="")
    # PEM of the private key that the tokens are bound to (RFC 9449), if any.
    dpop_key = SealedTextField(blank=True, default="", db_default="")
    expires_at = models.DateTimeField(_("expires"), null=True)
    scope = models.TextField(_("scope"), blank=True, default="")
    requested_scope = models.TextField(blank=True, default="", db_column="wanted_scope")
    version = models.PositiveIntegerField(default=0)
    signed_in_at = models.DateTimeField(_("signed in"), null=True)
    failure = models.JSONField(default=dict)
    failed_at = models.DateTimeField(null=True)
    lease_holder = models.UUIDField(null=True)
    lease_until = models.DateTimeField(null=True)

    class Meta:
        verbose_name = _("OAuth grant")
        verbose_name_plural = _("OAuth grants")
        constraints = (
            models.UniqueConstraint(fields=["server", "subject"], name="grant_once_per_subject"),
        )

    def __str__(self) -> str:
        return f"{self.server_id} for {self.subject}"


class OAuthClient(OrganizationModel):
    """Our dynamic client registration at one authorization server (RFC 7591).

    Never used with another issuer.
    """

    issuer = models.CharField(max_length=MAX_ISSUER_LENGTH)
    redirect_uri = models.CharField(max_length=MAX_ISSUER_LENGTH)
    client_id = models.CharField(max_length=2048)
    client_secret = SealedTextField(blank=True, default="")
    method = models.CharField(max_length=32, default="none")
    expires_at = models.DateTimeField(null=True)
    registration_url = models.CharField(max_length=2048, blank=True, default="")
    registration_token = SealedTextField(blank=True, default="")

    class Meta:
        verbose_name = _("OAuth client")
        verbose_name_plural = _("OAuth clients")
        constraints = (
            models.UniqueConstraint(
                fields=["organization", "issuer", "redirect_uri"], name="oauth_client_per_issuer"
            ),
        )

    def __str__(self) -> str:
        return f"{self.client_id} at {self.issuer}"


class OAuthLogin(OrganizationModel):
    """A pending browser login: single use, ten minutes, one person, one session.

    Only the digest of the state is stored; the issuer, and whether it identifies itself in the
    response (RFC 9207), are recorded before the redirect.
    """

    LIFETIME: ClassVar[timedelta] = timedelta(minutes=10)

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    subject = models.UUIDField()
    binding = models.CharField(max_length=64)
    state_digest = models.CharField(max_length=64, unique=True)
    session_digest = models.CharField(max_length=64)
    verifier = SealedTextField()
    authorization_server = models.JSONField(default=dict, db_column="authority")
    client_id = models.CharField(max_length=2048)
    redirect_uri = models.CharField(max_length=2048)
    scope = models.TextField(blank=True, default="")
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = _("sign-in")
        verbose_name_plural = _("sign-ins")

    def __str__(self) -> str:
        return f"login to {self.server_id} by {self.user_id}"
