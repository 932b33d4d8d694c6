"""Answer servers' elicitation, sampling and roots requests in sessions.

A server of the handshake era waits on a live connection, so a person has limited time to answer. A
modern server's requests are in the call's `Exchange`: roots are answered at once, and to wait for a
person the session is suspended without a worker.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.utils import timezone

from agents.approvals.services import withdraw_approvals
from agents.builtin_tools.workspaces import ensure_workspace_folder
from agents.calls import pending_calls
from agents.calls.require_approval import ApprovalRequired
from agents.calls.root_limits import RootSession
from agents.calls.types import CallRefused
from agents.elicitations import requested_schemas
from agents.elicitations import services as elicitations
from agents.elicitations.services import ElicitationOrigin
from agents.models import Approval, ElicitationRequest, PendingCall, Session, Step
from agents.sessions import sampling, step_store
from agents.sessions.leases import SessionLease
from agents.sessions.sampling import SamplingRequest
from agents.wakeups import build_answers_topic
from bonobot.core.i18n.messages import format_message
from bonobot.core.message_bus import WakeupListener, listen
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.admission import Refusal
from mcp_servers.client.answer_server_requests import (
    Host,
    HostRequestRejected,
    build_declared_capabilities,
    declares_tasks,
)
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.jsonrpc import TASKS_EXTENSION
from mcp_servers.models import Server

# The name of the only root.
ROOT_NAME = "workspace"
# Seconds until a waiting request notices, without a wake-up, that its process is stopping.
MAX_WAIT_S = 1.0
# Maximum requests of one server per run.
MAX_SERVER_REQUESTS = 32


class SessionHost(Host):
    """Answers the servers of one session during a run."""

    def __init__(
        self, lease: SessionLease, session: Session, root: RootSession | None = None
    ) -> None:
        self.lease = lease
        self._session = session
        self._root = root
        self._request_counts: Counter[UUID] = Counter()

    def capabilities(self, endpoint: ServerEndpoint) -> Mapping[str, Any]:
        """Return the capabilities that this server may use.

        The model runs no tools for it, and of the extensions, sessions support only tasks.
        """
        declared = build_declared_capabilities(endpoint) | {"extensions": {TASKS_EXTENSION: {}}}
        return declared | ({"sampling": {}} if "sampling" in declared else {})

    def needs_handshake(self, endpoint: ServerEndpoint) -> bool:
        """Return whether the server may send requests; tasks exist only in the modern era."""
        return bool(endpoint.allowed_requests) and not declares_tasks(endpoint)

    async def elicitation(
        self, endpoint: ServerEndpoint, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Ask the session's user and wait up to `BONOBOT_ANSWER_S` seconds."""
        self._check_offered(endpoint, "elicitation")
        form = requested_schemas.parse_elicitation(params)
        expires_at = timezone.now() + timedelta(seconds=settings.BONOBOT_ANSWER_S)
        origin = ElicitationOrigin(self._session.pk, endpoint.server_id, endpoint.name)
        orm = get_runtime().run_orm
        elicitation_request = await orm(elicitations.create_request, origin, form, expires_at)
        try:
            await orm(
                step_store.append_step,
                self.lease,
                Step.Kind.NOTICE,
                _build_elicitation_notice(elicitation_request),
            )
            return await self._wait_for_answer(elicitation_request.pk)
        finally:
            await asyncio.shield(orm(elicitations.withdraw_request, elicitation_request.pk))

    async def sampling(self, endpoint: ServerEndpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        """Have the agent's model answer, after approval if the server requires it."""
        self._check_offered(endpoint, "sampling")
        request = sampling.parse_request(params)
        try:
            await self._wait_for_approval(endpoint.server_id, request)
            return await sampling.answer_request(
                self.lease, self._session, endpoint.server_id, request, self._root
            )
        except (CallRefused, Refusal) as refusal:
            raise HostRequestRejected(str(refusal), code=refusal.code) from refusal

    async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
        """Return the session's folder as the only root."""
        self._check_offered(endpoint, "roots")
        return await get_runtime().run_orm(self._build_roots)

    async def complete_elicitation(self, endpoint: ServerEndpoint, elicitation_id: str) -> None:
        """Mark a URL elicitation as completed."""
        await get_runtime().run_orm(
            elicitations.complete_url_elicitation,
            self._session.pk,
            endpoint.server_id,
            elicitation_id,
        )

    async def collect_responses(self, step: Step, pending_call: PendingCall) -> bool:
        """Collect the responses for a call's next round; False if one waits for a person.

        A stdio server's process ends when the session is suspended, and its state of the call with
        it, so wait for a person up to `BONOBOT_ANSWER_S` seconds first.
        """
        if await self._collect_available_responses(step, pending_call):
            return True
        stdio_servers = Server.objects.filter(pk=pending_call.server_id, transport_type="stdio")
        wait_s = (
            settings.BONOBOT_ANSWER_S if await get_runtime().run_orm(stdio_servers.exists) else 0
        )
        deadline = monotonic() + wait_s
        async with self._listen_for_answers() as listener:
            while monotonic() < deadline and not self.lease.state.is_stopping:
                await listener.wait(min(MAX_WAIT_S, deadline - monotonic()))
                if await self._collect_available_responses(step, pending_call):
                    return True
        return False

    def _listen_for_answers(self) -> AbstractAsyncContextManager[WakeupListener]:
        return listen(build_answers_topic(self._session.pk))

    async def _collect_available_responses(self, step: Step, pending_call: PendingCall) -> bool:
        """Collect available responses; each is saved at once, so that none is computed twice."""
        pending_requests: list[ElicitationRequest | Approval] = []
        known_responses = pending_call.responses.open() or {}
        for key, request in pending_call.requests.items():
            if key in known_responses:
                continue
            answer = await self._answer_request(pending_call, key, request, pending_requests)
            if answer is not None:
                await get_runtime().run_orm(
                    pending_calls.save_responses, pending_call, {key: answer}
                )
        for pending in pending_requests:
            if isinstance(pending, Approval):
                extra = ApprovalRequired(pending).extra
                await get_runtime().run_orm(
                    step_store.show_pending_approval, self.lease, step, extra
                )
        await self._show_questions(
            step,
            [request for request in pending_requests if isinstance(request, ElicitationRequest)],
        )
        return not pending_requests

    async def _show_questions(
        self, step: Step, elicitation_requests: list[ElicitationRequest]
    ) -> None:
        """Show new elicitation requests to watchers."""
        request_ids = [elicitation_request.pk for elicitation_request in elicitation_requests]
        shown_ids = step.payload.get("questions", [])
        if shown_ids != list(map(str, request_ids)):
            notices = [
                _build_elicitation_notice(elicitation_request)
                for elicitation_request in elicitation_requests
                if str(elicitation_request.pk) not in shown_ids
            ]
            await get_runtime().run_orm(
                step_store.show_questions, self.lease, step, request_ids, notices
            )

    async def _answer_request(
        self,
        pending_call: PendingCall,
        key: str,
        request: Mapping[str, Any],
        pending_requests: list[ElicitationRequest | Approval],
    ) -> dict[str, Any] | None:
        """Return the answer; None, and add to `pending_requests`, if it waits for a person."""
        if request["method"] == "sampling/createMessage":
            return await self._answer_sampling(
                pending_call, key, request["params"], pending_requests
            )
        if request["method"] == "roots/list":
            return await get_runtime().run_orm(self._build_roots)
        try:
            form = requested_schemas.parse_elicitation(request["params"])
        except InvalidInput as error:
            raise Problem(
                format_message(
                    "The elicitation request of `{server_name}` can't be displayed: {fault}",
                    server_name=pending_call.server_name,
                    fault=error,
                ),
                code="bad_elicitation",
            ) from error
        origin = ElicitationOrigin(
            self._session.pk,
            server_id=pending_call.server_id,
            server_name=pending_call.server_name,
            own_name=pending_call.own_name,
            call_id=pending_call.call_id,
            pending_call=pending_call,
            key=key,
        )
        elicitation_request = await get_runtime().run_orm(
            elicitations.create_request, origin, form, pending_call.ends_at
        )
        if (answer := elicitations.build_result(elicitation_request)) is None:
            pending_requests.append(elicitation_request)
        return answer

    async def _answer_sampling(
        self,
        pending_call: PendingCall,
        key: str,
        params: Mapping[str, Any],
        pending_requests: list[ElicitationRequest | Approval],
    ) -> dict[str, Any] | None:
        """Return the model's answer; None, and add to `pending_requests`, if it waits for approval.

        A denial can't be reported to the server here, so it ends the call.
        """
        request = sampling.parse_request(params)
        request_key = f"{pending_call.pk} {pending_call.round} {key}"
        approval = await sampling.find_pending_approval(
            self._session, pending_call.server_id, request, request_key, pending_call.call_id
        )
        if approval is not None:
            pending_requests.append(approval)
            return None
        return await sampling.answer_request(
            self.lease, self._session, pending_call.server_id, request, self._root
        )

    async def _wait_for_approval(self, server_id: UUID, request: SamplingRequest) -> None:
        """Wait for approval up to `BONOBOT_ANSWER_S` seconds; raises `CallRefused`."""
        request_id = uuid4()
        try:
            async with (
                asyncio.timeout(settings.BONOBOT_ANSWER_S),
                self._listen_for_answers() as listener,
            ):
                while await sampling.find_pending_approval(
                    self._session, server_id, request, str(request_id), request_id
                ):
                    if self.lease.state.is_stopping:
                        raise CallRefused("This process is shutting down.", code="approval_expired")
                    await listener.wait(MAX_WAIT_S)
        except TimeoutError:
            raise CallRefused(
                "The request expired without an answer.", code="approval_expired"
            ) from None
        finally:
            await asyncio.shield(
                get_runtime().run_orm(withdraw_approvals, self._session.pk, [request_id])
            )

    async def _wait_for_answer(self, request_id: UUID) -> dict[str, Any]:
        """Wait for a person's answer and return it; `cancel` if this process doesn't wait."""
        orm = get_runtime().run_orm
        async with self._listen_for_answers() as listener:
            while True:
                elicitation_request = await orm(ElicitationRequest.objects.get, pk=request_id)
                if (answer := elicitations.build_result(elicitation_request)) is not None:
                    await orm(elicitations.clear_content, request_id)
                    return answer
                if self.lease.state.is_stopping or self.lease.state.cancels_live_requests:
                    return {"action": "cancel"}
                await listener.wait(MAX_WAIT_S)

    def _build_roots(self) -> dict[str, Any]:
        """Return the `roots/list` result: the attached folder, or the agent's own."""
        session = self._session
        attached_folder = session.working_dir or session.agent.workspace_folder
        folder = ensure_workspace_folder(session.organization_id, session.agent_id, attached_folder)
        return {"roots": [{"uri": folder.as_uri(), "name": ROOT_NAME}]}

    def _check_offered(self, endpoint: ServerEndpoint, capability: str) -> None:
        """Raise `HostRequestRejected` for a capability not offered, or for too many requests."""
        if capability not in self.capabilities(endpoint):
            raise HostRequestRejected(
                "The client didn't declare this capability to the server.", code="not_offered"
            )
        self._request_counts[endpoint.server_id] += 1
        if self._request_counts[endpoint.server_id] > MAX_SERVER_REQUESTS:
            raise HostRequestRejected(
                format_message(
                    "The server sent more than {limit} requests.",
                    limit=MAX_SERVER_REQUESTS,
                ),
                code="too_many_server_requests",
            )


def _build_elicitation_notice(elicitation_request: ElicitationRequest) -> dict[str, str]:
    """Return the notice on a question."""
    server = make_visible(elicitation_request.server_name, 120)
    text = f"The server {server} asks: {make_visible(elicitation_request.message)}"
    return {"code": "question", "text": text, "question_id": str(elicitation_request.pk)}
