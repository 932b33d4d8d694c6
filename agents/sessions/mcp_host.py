"""Answer servers' elicitation, sampling and roots requests in sessions.

A server of the handshake era waits on a live connection, so a person has limited time to answer. A
modern server's requests are in the call's `Exchange`: roots are answered at once, and to wait for a
person the session is suspended without a worker.
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

from agents.builtin_tools.workspaces import ensure_workspace_folder
from agents.calls import pending_calls
from agents.calls.require_approval import ApprovalRequired
from agents.calls.root_limits import RootSession
from agents.calls.types import CallRefused
from agents.elicitations import forms as elicitation_forms
from agents.elicitations import services as elicitations
from agents.elicitations.services import ElicitationOrigin
from agents.models import Approval, Exchange, Question, Session, Step
from agents.sessions import sampling, step_store
from agents.sessions import sampling_messages as governed
from agents.sessions.leases import SessionLease
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.refusals import Refusal
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.host import Host, HostRequestRejected, build_declared_capabilities
from mcp_servers.models import Server

# The name of the only root.
WORKSPACE = "workspace"
# Seconds between polls for a person's answer.
LOOK_EVERY_S = 1.0
# Maximum requests of one server per run.
MOST_ASKED = 32


class SessionHost(Host):
    """Answers the servers of one session during a run."""

    def __init__(
        self, hold: SessionLease, session: Session, root: RootSession | None = None
    ) -> None:
        self.hold = hold
        self._session = session
        self._root = root
        self._asked: Counter[UUID] = Counter()

    def capabilities(self, endpoint: ServerEndpoint) -> Mapping[str, Any]:
        """Return the capabilities that this server may use."""
        return build_declared_capabilities(endpoint)

    async def elicitation(
        self, endpoint: ServerEndpoint, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Ask the session's user and wait up to `BONOBOT_ANSWER_S` seconds."""
        self._offered(endpoint, "elicitation")
        asked = elicitation_forms.read(params)
        until = timezone.now() + timedelta(seconds=settings.BONOBOT_ANSWER_S)
        origin = ElicitationOrigin(self._session.pk, endpoint.server_id, endpoint.name)
        orm = get_runtime().orm
        question = await orm(elicitations.ask, origin, asked, until)
        try:
            await orm(
                step_store.append, self.hold, Step.Kind.NOTICE, _build_elicitation_notice(question)
            )
            return await self._answer(question.pk)
        finally:
            await asyncio.shield(orm(elicitations.take_back, question.pk))

    async def sampling(self, endpoint: ServerEndpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        """Have the agent's model answer, after approval if the server requires it."""
        self._offered(endpoint, "sampling")
        wanted = governed.read(params)
        try:
            await self._let(endpoint.server_id, wanted)
            return await sampling.answer(
                self.hold, self._session, endpoint.server_id, wanted, self._root
            )
        except (CallRefused, Refusal) as no:
            raise HostRequestRejected(str(no), code=no.code) from no

    async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
        """Return the session's folder as the only root."""
        self._offered(endpoint, "roots")
        return await get_runtime().orm(self._workspace)

    async def elicited(self, endpoint: ServerEndpoint, elicitation_id: str) -> None:
        """Mark a URL elicitation as completed."""
        await get_runtime().orm(
            elicitations.complete_url_elicitation,
            self._session.pk,
            endpoint.server_id,
            elicitation_id,
        )

    async def gather(self, step: Step, exchange: Exchange) -> bool:
        """Collect the responses for a call's next round; False if one waits for a person.

        A stdio server's process ends when the session is suspended, and its state of the call with
        it, so wait for a person up to `BONOBOT_ANSWER_S` seconds first.
        """
        if await self._gathered(step, exchange):
            return True
        stdio = Server.objects.filter(pk=exchange.server_id, transport_type="stdio")
        patient = settings.BONOBOT_ANSWER_S if await get_runtime().orm(stdio.exists) else 0
        until = monotonic() + patient
        while monotonic() < until and not self.hold.presence.leaving:
            await asyncio.sleep(LOOK_EVERY_S)
            if await self._gathered(step, exchange):
                return True
        return False

    async def _gathered(self, step: Step, exchange: Exchange) -> bool:
        """Collect available responses; each is saved at once, so that none is computed twice."""
        asked: list[Question | Approval] = []
        known = exchange.responses.open() or {}
        for key, one in exchange.requests.items():
            if key in known:
                continue
            answer = await self._respond(exchange, key, one, asked)
            if answer is not None:
                await get_runtime().orm(pending_calls.save_responses, exchange, {key: answer})
        for waits in asked:
            if isinstance(waits, Approval):
                extra = ApprovalRequired(waits).extra
                await get_runtime().orm(step_store.show_waiting, self.hold, step, extra)
        await self._show(step, [one for one in asked if isinstance(one, Question)])
        return not asked

    async def _show(self, step: Step, questions: list[Question]) -> None:
        """Show new questions to watchers."""
        ids, known = [one.pk for one in questions], step.payload.get("questions", [])
        if known != [str(one) for one in ids]:
            notices = [
                _build_elicitation_notice(one) for one in questions if str(one.pk) not in known
            ]
            await get_runtime().orm(step_store.show_questions, self.hold, step, ids, notices)

    async def _respond(
        self,
        exchange: Exchange,
        key: str,
        one: Mapping[str, Any],
        asked: list[Question | Approval],
    ) -> dict[str, Any] | None:
        """Return the answer; None, and add to `pending_requests`, if it waits for a person."""
        if one["method"] == "sampling/createMessage":
            return await self._sampled(exchange, key, one["params"], asked)
        if one["method"] == "roots/list":
            return await get_runtime().orm(self._workspace)
        try:
            wanted = elicitation_forms.read(one["params"])
        except InvalidInput as fault:
            raise Problem(
                format_message(
                    "`{server_name}` asks what nobody can be shown: {fault}",
                    server_name=exchange.server_name,
                    fault=fault,
                ),
                code="bad_elicitation",
            ) from fault
        origin = ElicitationOrigin(
            self._session.pk,
            exchange.server_id,
            exchange.server_name,
            exchange.own_name,
            exchange.call_id,
            exchange,
            key,
        )
        question = await get_runtime().orm(elicitations.ask, origin, wanted, exchange.ends_at)
        if (answer := elicitations.build_result(question)) is None:
            asked.append(question)
        return answer

    async def _sampled(
        self,
        exchange: Exchange,
        key: str,
        params: Mapping[str, Any],
        asked: list[Question | Approval],
    ) -> dict[str, Any] | None:
        """Return the model's answer; None, and add to `pending_requests`, if it waits for approval.

        A denial can't be reported to the server here, so it ends the call.
        """
        wanted = governed.read(params)
        once = f"{exchange.pk} {exchange.round} {key}"
        approval = await sampling.find_pending_approval(
            self._session, exchange.server_id, wanted, once
        )
        if approval is not None:
            asked.append(approval)
            return None
        return await sampling.answer(
            self.hold, self._session, exchange.server_id, wanted, self._root
        )

    async def _let(self, server_id: UUID, wanted: governed.SamplingRequest) -> None:
        """Wait for approval up to `BONOBOT_ANSWER_S` seconds; raises `CallRefused`."""
        once = str(uuid4())
        try:
            async with asyncio.timeout(settings.BONOBOT_ANSWER_S):
                while await sampling.find_pending_approval(self._session, server_id, wanted, once):
                    if self.hold.presence.leaving:
                        raise CallRefused("This process is told to stop.", code="approval_expired")
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise CallRefused("Nobody answered in time.", code="approval_expired") from None

    async def _answer(self, question_id: UUID) -> dict[str, Any]:
        """Wait for a person's answer and return it; `cancel` if this process is stopping."""
        while True:
            question = await get_runtime().orm(Question.objects.get, pk=question_id)
            if (answer := elicitations.build_result(question)) is not None:
                await get_runtime().orm(elicitations.forget, question_id)
                return answer
            if self.hold.presence.leaving:
                return {"action": "cancel"}
            await asyncio.sleep(LOOK_EVERY_S)

    def _workspace(self) -> dict[str, Any]:
        """Return the `roots/list` result: the attached folder, or the agent's own."""
        session = self._session
        attached = session.working_dir or session.agent.workspace_folder
        folder = ensure_workspace_folder(session.organization_id, session.agent_id, attached)
        return {"roots": [{"uri": folder.as_uri(), "name": WORKSPACE}]}

    def _offered(self, endpoint: ServerEndpoint, what: str) -> None:
        """Raise `HostRequestRejected` for a capability not offered, or for too many requests."""
        if what not in self.capabilities(endpoint):
            raise HostRequestRejected("This was not offered to the server.", code="not_offered")
        self._asked[endpoint.server_id] += 1
        if self._asked[endpoint.server_id] > MOST_ASKED:
            raise HostRequestRejected(
                format_message(
                    "The server asked more than {most_asked} times.", most_asked=MOST_ASKED
                ),
                code="asks_too_often",
            )


def _build_elicitation_notice(question: Question) -> dict[str, str]:
    """Return the notice on a question."""
    server = make_visible(question.server_name, 120)
    text = f"The server {server} asks: {make_visible(question.message)}"
    return {"code": "question", "text": text, "question_id": str(question.pk)}
