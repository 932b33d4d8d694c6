"""Documents as rows: kept when a server is registered, and when a newer one is fetched."""

import hashlib

from django.utils import timezone

from mcp_servers.models import ApiDocument, Server


def keep_document(server: Server, text: str | None, etag: str = "") -> None:
    """Write a server's document; None keeps what is stored."""
    if text is not None:
        ApiDocument.objects.update_or_create(
            server=server,
            defaults={
                "organization_id": server.organization_id,
                "text": text,
                "digest": digest_of(text),
                "etag": etag,
                "fetched_at": timezone.now(),
            },
        )


def document_of(server: Server) -> ApiDocument | None:
    """Return a server's document, if it has one yet."""
    found: ApiDocument | None = ApiDocument.objects.filter(server=server).first()
    return found


def digest_of(text: str) -> str:
    """Return SHA-256 over a document's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
