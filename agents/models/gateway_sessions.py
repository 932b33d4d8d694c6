"""Handshake sessions of gateway clients, so that any process can continue them."""

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel
from bonobot.core.crypto.encrypted_fields import SealedJSONField


class GatewaySessionState(OrganizationModel):
    """What a process needs to continue a client's session.

    `key_digest` is the digest of the session's ID, `owner_key` names its principal and target. A
    row that was deleted, or not used for half an hour, is no session any more.
    """

    key_digest = models.CharField(max_length=64, unique=True)
    owner_key = models.CharField(max_length=255)
    params = models.JSONField(default=dict)
    log_level = models.CharField(max_length=16)
    # The known state of each watched resource, by URI, and the digests of known lists, by kind.
    watched = models.JSONField(default=dict)
    list_digests = models.JSONField(default=dict)
    used_at = models.DateTimeField(db_index=True)

    class Meta:
        db_table = "agents_gateway_session"
        verbose_name = _("gateway session")
        verbose_name_plural = _("gateway sessions")

    def __str__(self) -> str:
        return self.owner_key


class GatewaySessionMessage(OrganizationModel):
    """A client's message for the process that waits for it: a response, or a cancellation.

    `sender` is the process that received it; the others deliver it, once each.
    """

    state = models.ForeignKey(
        GatewaySessionState, on_delete=models.CASCADE, related_name="messages"
    )
    sender = models.UUIDField()
    body: Any = SealedJSONField(default=dict, remembered=False, label="agents.mcp_session.message")

    class Meta:
        db_table = "agents_gateway_session_message"
        ordering = ("created_at", "id")
        verbose_name = _("gateway session message")
        verbose_name_plural = _("gateway session messages")

    def __str__(self) -> str:
        return str(self.state_id)
