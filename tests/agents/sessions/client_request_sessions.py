"""Running sessions with `tests/servers/client_request_server.py`."""

import asyncio

from bonobot.core.runtime import get_runtime


async def run_until_rest(runner, session_id):
    """Run a session until it rests."""
    task = await runner.claim_and_run(session_id)
    if task is not None:
        await asyncio.wait_for(task, 30)


def run_session(session, runner):
    """Run a session until it rests, and return it."""
    get_runtime().call(run_until_rest, runner, session.pk)
    session.refresh_from_db()
    return session
