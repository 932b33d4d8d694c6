"""Registration: a program that nobody knows says who it is, and gets a name (RFC 7591).

Anybody may do so, so it gives nothing: what a program may is said by a person, on a page that shows
where it would send them. There are bounds to how many register, and those that nobody let in go.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone
from oauth2_provider.models import Application

from bonobot.authority.redirects import destination
from bonobot.lib.problems import Problem
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from bonobot.tenancy.models import Token

LONGEST_NAME = 100
MOST_REDIRECTS = 10
# How many are kept that nobody has let in yet, and for how long.
MOST_UNUSED = 1_000
UNUSED = timedelta(days=1)
CODE_GRANT = "authorization_code"


class BadMetadata(Problem):
    """What a program says of itself can't be taken (RFC 7591 section 3.2.2)."""

    code = "invalid_client_metadata"
    status = 400


@dataclass(frozen=True, slots=True)
class Program:
    """What a program says of itself: a stranger's words."""

    name: str
    redirect_uris: tuple[str, ...]


def read(said: Mapping[str, Any]) -> Program:
    """Return what a program says of itself; raises `BadMetadata`."""
    name = said.get("client_name", "")
    uris = said.get("redirect_uris")
    if not isinstance(name, str):
        raise BadMetadata("`client_name` must be a text.")
    if not isinstance(uris, list) or not 0 < len(uris) <= MOST_REDIRECTS:
        raise BadMetadata(
            say(
                "`redirect_uris` must have from 1 to {most_redirects} entries.",
                most_redirects=MOST_REDIRECTS,
            ),
            code="invalid_redirect_uri",
        )
    for uri in uris:
        if not isinstance(uri, str) or destination(uri, settings.BONOBOT_OAUTH_SCHEMES) is None:
            raise BadMetadata(
                "A redirect URI must be https, of the loopback, or of a scheme that is known.",
                code="invalid_redirect_uri",
            )
    grants = said.get("grant_types", [CODE_GRANT])
    if not isinstance(grants, list) or CODE_GRANT not in grants:
        raise BadMetadata(say("`grant_types` must have `{code_grant}`.", code_grant=CODE_GRANT))
    return Program(visible(name.strip(), LONGEST_NAME), tuple(dict.fromkeys(uris)))


def register(program: Program) -> Application:
    """Keep a program and return it; what was there longest and unused makes room."""
    made = Application.objects.create(
        name=program.name,
        redirect_uris=" ".join(program.redirect_uris),
        client_type=Application.CLIENT_PUBLIC,
        authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
        client_secret="",
        hash_client_secret=False,
        registration_source=Application.RegistrationSource.DCR,
    )
    kept = unused().order_by("-created").values("pk")[:MOST_UNUSED]
    unused().exclude(pk__in=list(kept.values_list("pk", flat=True))).delete()
    return made


def unused(since: datetime | None = None) -> "QuerySet[Application]":
    """Return the programs that came by themselves and that nobody ever let in."""
    let_in = Token.objects.filter(client_id=OuterRef("client_id"))
    found = Application.objects.filter(~Exists(let_in)).exclude(
        registration_source=Application.RegistrationSource.MANUAL
    )
    return found.filter(created__lt=since) if since else found


def prune() -> int:
    """Remove the programs that nobody has let in for a day; return how many."""
    removed, _each = unused(timezone.now() - UNUSED).delete()
    return int(removed)


def answered(application: Application) -> dict[str, Any]:
    """Return what a program is told when it has registered: also what it got in place of its wish.

    There are public programs only, so a secret that was asked for isn't given.
    """
    return {
        "client_id": application.client_id,
        "client_id_issued_at": int(application.created.timestamp()),
        "client_name": application.name,
        "redirect_uris": application.redirect_uris.split(),
        "grant_types": [CODE_GRANT, "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }
