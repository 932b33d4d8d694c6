"""Sessions with the server that asks back (`tests/servers/client_request_server.py`)."""

import asyncio

from bonobot.core.runtime import get_runtime


async def run_until_rest(runner, session_id):
    """Run a session until it rests."""
    task = await runner.claim_and_run(session_id)
    if task is not None:
        await asyncio.wait_for(task, 30)


def goes(session, runner):
    """Run a session from where it stands, and return it as it rests."""
    get_runtime().call(run_until_rest, runner, session.pk)
    session.refresh_from_db()
    return session
