"""The host of a session: answers what its servers ask back (FEATURES D1, D5).

On a live connection (the handshake era) the server waits, so a person has a bounded time. What a
modern server asks is in the call's `Exchange`: roots are answered at once, and for a person the
session rests without a worker.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.utils import timezone

from agents import asking, exchanges
from agents.asking import Origin
from agents.builtin_tools.workspaces import workspace_path
from agents.consents import ApprovalRequired
from agents.governance import elicitations
from agents.governance import sampling as governed
from agents.governance.roots import Root
from agents.models import Approval, Exchange, Question, Session, Step
from agents.requests import Refused
from agents.sessions import rows, sampling
from agents.sessions.runners import Hold
from bonobot.ledger.refusals import Refusal
from bonobot.lib.problems import Invalid, Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.host import Host, Rejected, declared
from mcp_servers.models import Server

# What the only root is called.
WORKSPACE = "workspace"
# Looks at the row of a question that a server waits for, a second.
LOOK_EVERY_S = 1.0
# Of one server, while a run lasts: one that asks without end is told no.
MOST_ASKED = 32


class SessionHost(Host):
    """Answers the servers of one session while a run of it lasts."""

    def __init__(self, hold: Hold, session: Session, root: Root | None = None) -> None:
        self.hold = hold
        self._session = session
        self._root = root
        self._asked: Counter[UUID] = Counter()

    def capabilities(self, endpoint: Endpoint) -> Mapping[str, Any]:
        """Return what this server may ask for: all of it is answered here."""
        return declared(endpoint)

    async def elicitation(self, endpoint: Endpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the person who runs the session, and wait as long as a live connection may."""
        self._offered(endpoint, "elicitation")
        asked = elicitations.read(params)
        until = timezone.now() + timedelta(seconds=settings.BONOBOT_ANSWER_S)
        origin = Origin(self._session.pk, endpoint.server_id, endpoint.name)
        orm = runtime().orm
        question = await orm(asking.ask, origin, asked, until)
        try:
            await orm(rows.append, self.hold, Step.Kind.NOTICE, _notice(question))
            return await self._answer(question.pk)
        finally:
            await asyncio.shield(orm(asking.take_back, question.pk))

    async def sampling(self, endpoint: Endpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        """Have the agent's model answer, after a person's yes where the server is set so."""
        self._offered(endpoint, "sampling")
        wanted = governed.read(params)
        try:
            await self._let(endpoint.server_id, wanted)
            return await sampling.answer(
                self.hold, self._session, endpoint.server_id, wanted, self._root
            )
        except (Refused, Refusal) as no:
            raise Rejected(str(no), code=no.code) from no

    async def roots(self, endpoint: Endpoint) -> dict[str, Any]:
        """Tell the folder that the session works in."""
        self._offered(endpoint, "roots")
        return await runtime().orm(self._workspace)

    async def elicited(self, endpoint: Endpoint, elicitation_id: str) -> None:
        """Note on the question that its web page is done."""
        await runtime().orm(asking.completed, self._session.pk, endpoint.server_id, elicitation_id)

    async def gather(self, step: Step, exchange: Exchange) -> bool:
        """Gather what the next part of a call needs; False where a person is waited for.

        A child process ends when its session rests, and what it keeps of the call with it (the key
        of its state, a visit to a web page): it is waited with for as long as a live connection.
        """
        if await self._gathered(step, exchange):
            return True
        stdio = Server.objects.filter(pk=exchange.server_id, transport_type="stdio")
        patient = settings.BONOBOT_ANSWER_S if await runtime().orm(stdio.exists) else 0
        until = monotonic() + patient
        while monotonic() < until and not self.hold.presence.leaving:
            await asyncio.sleep(LOOK_EVERY_S)
            if await self._gathered(step, exchange):
                return True
        return False

    async def _gathered(self, step: Step, exchange: Exchange) -> bool:
        """Gather what is there; each answer is kept at once, so that none is made twice."""
        asked: list[Question | Approval] = []
        known = exchange.responses.open() or {}
        for key, one in exchange.requests.items():
            if key in known:
                continue
            answer = await self._respond(exchange, key, one, asked)
            if answer is not None:
                await runtime().orm(exchanges.answered, exchange, {key: answer})
        for waits in asked:
            if isinstance(waits, Approval):
                extra = ApprovalRequired(waits).extra
                await runtime().orm(rows.show_waiting, self.hold, step, extra)
        await self._show(step, [one for one in asked if isinstance(one, Question)])
        return not asked

    async def _show(self, step: Step, questions: list[Question]) -> None:
        """Let watchers see what is asked, once."""
        ids, known = [one.pk for one in questions], step.payload.get("questions", [])
        if known != [str(one) for one in ids]:
            notices = [_notice(one) for one in questions if str(one.pk) not in known]
            await runtime().orm(rows.show_questions, self.hold, step, ids, notices)

    async def _respond(
        self,
        exchange: Exchange,
        key: str,
        one: Mapping[str, Any],
        asked: list[Question | Approval],
    ) -> dict[str, Any] | None:
        """Return an answer; None, with the question in `asked`, where a person is waited for."""
        if one["method"] == "sampling/createMessage":
            return await self._sampled(exchange, key, one["params"], asked)
        if one["method"] == "roots/list":
            return await runtime().orm(self._workspace)
        try:
            wanted = elicitations.read(one["params"])
        except Invalid as fault:
            raise Problem(
                say(
                    "`{server_name}` asks what nobody can be shown: {fault}",
                    server_name=exchange.server_name,
                    fault=fault,
                ),
                code="bad_elicitation",
            ) from fault
        origin = Origin(
            self._session.pk,
            exchange.server_id,
            exchange.server_name,
            exchange.own_name,
            exchange.call_id,
            exchange,
            key,
        )
        question = await runtime().orm(asking.ask, origin, wanted, exchange.ends_at)
        if (answer := asking.result_of(question)) is None:
            asked.append(question)
        return answer

    async def _sampled(
        self,
        exchange: Exchange,
        key: str,
        params: Mapping[str, Any],
        asked: list[Question | Approval],
    ) -> dict[str, Any] | None:
        """Return the model's answer; None, with the approval in `asked`, where one is waited for.

        A server can't be told of a no here, so that ends the call.
        """
        wanted = governed.read(params)
        once = f"{exchange.pk} {exchange.round} {key}"
        approval = await sampling.consented(self._session, exchange.server_id, wanted, once)
        if approval is not None:
            asked.append(approval)
            return None
        return await sampling.answer(
            self.hold, self._session, exchange.server_id, wanted, self._root
        )

    async def _let(self, server_id: UUID, wanted: governed.Wanted) -> None:
        """Wait for a person's yes as long as a live connection may; raises `Refused`."""
        once = str(uuid4())
        try:
            async with asyncio.timeout(settings.BONOBOT_ANSWER_S):
                while await sampling.consented(self._session, server_id, wanted, once):
                    if self.hold.presence.leaving:
                        raise Refused("This process is told to stop.", code="approval_expired")
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise Refused("Nobody answered in time.", code="approval_expired") from None

    async def _answer(self, question_id: UUID) -> dict[str, Any]:
        """Return a person's answer once it is there; `cancel` where this process stops."""
        while True:
            question = await runtime().orm(Question.objects.get, pk=question_id)
            if (answer := asking.result_of(question)) is not None:
                await runtime().orm(asking.forget, question_id)
                return answer
            if self.hold.presence.leaving:
                return {"action": "cancel"}
            await asyncio.sleep(LOOK_EVERY_S)

    def _workspace(self) -> dict[str, Any]:
        """Return the session's folder as the protocol names it: attached, or the agent's own."""
        session = self._session
        attached = session.working_dir or session.agent.workspace_folder
        folder = workspace_path(session.organization_id, session.agent_id, attached)
        return {"roots": [{"uri": folder.as_uri(), "name": WORKSPACE}]}

    def _offered(self, endpoint: Endpoint, what: str) -> None:
        """Raise `Rejected` where the server was not offered this, or asks without end."""
        if what not in self.capabilities(endpoint):
            raise Rejected("This was not offered to the server.", code="not_offered")
        self._asked[endpoint.server_id] += 1
        if self._asked[endpoint.server_id] > MOST_ASKED:
            raise Rejected(
                say("The server asked more than {most_asked} times.", most_asked=MOST_ASKED),
                code="asks_too_often",
            )


def _notice(question: Question) -> dict[str, str]:
    """Return what the conversation shows of a question."""
    text = f"The server {visible(question.server_name, 120)} asks: {visible(question.message)}"
    return {"code": "question", "text": text, "question_id": str(question.pk)}
