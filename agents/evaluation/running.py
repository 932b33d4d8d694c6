"""Running replays on the process's loop, under the heartbeat of its runner of sessions."""

import asyncio
import logging
from uuid import UUID

from agents.evaluation import replays
from agents.evaluation.playing import play, stage_of
from agents.evaluation.replays import Held
from agents.sessions.runner import session_runner
from bonobot.ledger.refusals import AuditUnavailable
from bonobot.lib.patience import AWAY, written
from bonobot.lib.problems import InternalError, Problem
from bonobot.lib.runtime import runtime

logger = logging.getLogger(__name__)


async def take(replay_id: UUID) -> None:
    """Claim a replay and make it; what it comes to is in its row."""
    await session_runner().begin()
    runner_id = session_runner().runner_id
    if runner_id is None:
        return
    held = await runtime().orm(replays.claim, replay_id, runner_id)
    if held is not None:
        await _made(held)


async def _made(held: Held) -> None:
    orm = runtime().orm
    try:
        stage = await orm(stage_of, held.replay_id)
        played = await play(stage)
    except asyncio.CancelledError:
        await asyncio.shield(orm(replays.hand_back, held))
        raise
    except (*AWAY, AuditUnavailable) as away:
        logger.warning("replay %s stands still: %s", held.replay_id, away)
        await written(replays.hand_back, held)
    except Problem as problem:
        await written(replays.fail, held, problem)
    except Exception:
        # This is where a task of the worker ends up: nobody above could tell the person.
        logger.exception("replay %s ended by a fault", held.replay_id)
        remedy = "Replay it again; if it stays so, tell the administrator."
        await written(replays.fail, held, InternalError(remedy=remedy))
    else:
        await written(replays.end, held, played)
