"""Stored stderr of stdio servers."""

import os
import socket
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from bonobot.core.runtime import get_runtime
from mcp_servers.client.child_process import RING, StderrSnapshot
from mcp_servers.models import ErrorOutput, Server

KEPT_OF_A_SERVER = 8
KEPT_FOR = timedelta(days=7)


async def keep(words: StderrSnapshot) -> None:
    """Store the stderr of a child; drop it if the server no longer exists."""
    await get_runtime().orm(write, words)


def write(words: StderrSnapshot) -> None:
    """Store one child's stderr; keep the latest eight of each server."""
    said: dict[str, Any] = {"text": words.text, "ended": words.ended[:500]}
    mine = ErrorOutput.objects.filter(pk=words.child_id)
    if mine.update(**said, updated_at=timezone.now()):
        return
    try:
        with transaction.atomic():
            if not Server.objects.filter(pk=words.server_id).exists():
                return
            ErrorOutput.objects.create(
                pk=words.child_id,
                organization_id=words.organization_id,
                server_id=words.server_id,
                process=f"{socket.gethostname()}:{os.getpid()}"[-255:],
                **said,
            )
    except IntegrityError:
        return  # the server was deleted after the check
    older = ErrorOutput.objects.filter(server=words.server_id).values_list("pk", flat=True)
    ErrorOutput.objects.filter(pk__in=list(older[KEPT_OF_A_SERVER:])).delete()


def list_error_outputs(server: Server) -> list[ErrorOutput]:
    """Return the stored stderr of the server's latest children, oldest first."""
    return list(server.outputs.all()[:KEPT_OF_A_SERVER])[::-1]


def load_latest_output(server: Server) -> str:
    """Return the last 64 KiB of stderr of the server's children, the latest at the end."""
    said = (row.text.rstrip("\n") for row in list_error_outputs(server) if row.text)
    return "\n".join(said)[-RING:]


def prune() -> int:
    """Delete stderr older than a week; return the number of rows."""
    return ErrorOutput.objects.filter(updated_at__lt=timezone.now() - KEPT_FOR).delete()[0]
