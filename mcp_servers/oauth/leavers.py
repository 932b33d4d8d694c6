"""Who left an organization leaves no tokens in it: found by a sweep, since people live below."""

from django.db.models import Exists, F, OuterRef

from bonobot.ledger.actors import Actor
from bonobot.tenancy.models import Membership, User
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.oauth.parting import account_of_server, part
from mcp_servers.recording import changing

SYSTEM = Actor(kind="system", id="oauth", label="sign-ins")
MOST = 200


def forget_leavers() -> int:
    """Delete the grants of people who are no members any more, and withdraw them; count them."""
    subject = OuterRef("subject")
    members = Membership.objects.filter(
        organization=OuterRef("organization_id"), user=subject, user__is_active=True
    )
    administrators = User.objects.filter(pk=subject, is_superuser=True, is_active=True)
    personal = OAuthGrant.objects.exclude(subject=F("organization_id"))
    left = personal.exclude(Exists(members)).exclude(Exists(administrators)).order_by("pk")[:MOST]
    found = list(left.select_related("server"))
    for row in found:
        _forget(row.server, row)
    return len(found)


def _forget(server: Server, row: OAuthGrant) -> None:
    account = account_of_server(server)
    with changing(
        server,
        SYSTEM,
        "oauth_disconnected",
        {"per": "user", "issuer": row.issuer, "reason": "left"},
        governed=False,
    ):
        rows = OAuthGrant.objects.filter(pk=row.pk)
        if account is None:
            rows.delete()
        else:
            part(server, account, SYSTEM, rows)
