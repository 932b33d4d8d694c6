"""Read an exported session (JSON) and check it. Pure.

The file may come from anywhere: nothing in it is trusted. Ids of calls, images, files, costs and
token counts are left out, since they belong to the organization that exported it.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from django.utils import timezone

from agents.flow_labels.session_labels import label_imported_session
from agents.llm import interface as llm_interface
from agents.llm.message_order import order_messages
from agents.llm.result_frames import build_frame
from agents.models import Agent, Session, Step
from agents.policies.effective_policies import require_enabled
from agents.sessions.history import build_history
from agents.sessions.output_schemas import check_output_schema, map_texts
from agents.sessions.services import build_title, require_run_permission
from bonobot.accounts.principals import Principal
from bonobot.core.crypto.organization_secrets import mask_organization_secrets
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.audit.admin_changes import record_change

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_STEPS = 2_000
MAX_MESSAGE_LENGTH = 100_000
# The version of the format in exported files; files without one are read as this version.
FORMAT_VERSION = 1
INTERRUPTED_TEXT = (
    "No result: the session was exported before this call ended. It may or may not have run."
)

_MAX_NAME_LENGTH, _MAX_INDEX, _MAX_DEPTH, _MAX_LABEL_LENGTH = 64, 999, 64, 200
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FINISHED_STATUSES = (Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED)
_EXPORT_REMEDY = "Use the JSON export of a session, unchanged."
IMPORT_NOTICE_CODE = "session_imported"


class UnusableSessionFile(InvalidInput):
    """The file isn't an exported session."""

    code = "unusable_session_file"


@dataclass(frozen=True)
class SessionFile:
    """An exported session: its steps without a session, numbered from 2, and where it is from."""

    steps: tuple[Step, ...]
    title: str
    status: str
    error_code: str
    error_detail: str
    source_id: str
    source_agent: str
    # How many images and files of the original aren't part of it.
    omitted_attachments: int
    # The SHA-256 of the document's canonical JSON.
    digest: str

    @property
    def turns(self) -> int:
        """Return the number of model turns."""
        return sum(step.kind == Step.Kind.MODEL for step in self.steps)

    @property
    def calls(self) -> int:
        """Return the number of calls."""
        return sum(step.kind == Step.Kind.CALL for step in self.steps)


def parse_session_file(content: bytes) -> SessionFile:
    """Return the session of a JSON export; raises `UnusableSessionFile`.

    Codes: `unusable_session_file`, `session_file_too_large`.
    """
    if len(content) > MAX_FILE_BYTES:
        raise UnusableSessionFile(
            format_message(
                "The file has {size} bytes; the limit is {limit}.",
                size=len(content),
                limit=MAX_FILE_BYTES,
            ),
            code="session_file_too_large",
            remedy="Import a shorter session.",
        )
    try:
        return read_session(json.loads(content.decode("utf-8-sig")))
    except (RecursionError, ValueError):
        _refuse("", format_message("The file isn't valid JSON."), _EXPORT_REMEDY)


def read_session(document: Any) -> SessionFile:
    """Return the session of a parsed export; raises `UnusableSessionFile`."""
    if not isinstance(document, Mapping) or not isinstance(document.get("steps"), list):
        _refuse("steps", format_message("The file has no list of steps."), _EXPORT_REMEDY)
    if _exceeds_depth(document):
        _refuse("", format_message("The file is nested too deeply."), _EXPORT_REMEDY)
    document = make_storable(document)
    if document.get("version", FORMAT_VERSION) != FORMAT_VERSION:
        text = format_message("This version of the format can't be read.")
        _refuse("version", text, format_message("Export the session as version 1."))
    items = document["steps"]
    if not 0 < len(items) <= MAX_STEPS:
        _refuse(
            "steps",
            format_message("The session has {count} steps.", count=len(items)),
            format_message("Import a session with 1 to {limit} steps.", limit=MAX_STEPS),
        )
    reader = _StepReader()
    for number, item in enumerate(items):
        reader.add_step(item, f"steps[{number}]")
    reader.check_conversation()
    header = _Fields(document, "")
    status = header.read_text("status", max_length=20)
    return SessionFile(
        steps=tuple(reader.steps),
        title=header.read_text("title", max_length=255),
        status=status if status in _FINISHED_STATUSES else Session.Status.CANCELLED,
        error_code=header.read_text("error_code", max_length=64),
        error_detail=header.read_text("error_detail"),
        source_id=header.read_text("id", max_length=_MAX_NAME_LENGTH),
        source_agent=header.read_text("agent", max_length=255),
        omitted_attachments=reader.omitted_attachments,
        digest=compute_digest(to_canonical_json(document)),
    )


def _refuse(field: str, text: str, remedy: str) -> NoReturn:
    raise UnusableSessionFile(text, field=field, remedy=remedy)


def _exceeds_depth(value: object) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


class _Fields:
    """Reads the fields of an object; `path` is where it is in the file."""

    def __init__(self, values: object, path: str) -> None:
        self.path = path
        if not isinstance(values, Mapping):
            _refuse(path, format_message("This isn't a JSON object."), _EXPORT_REMEDY)
        self.values = values

    def refuse(self, name: str, text: str, remedy: str = _EXPORT_REMEDY) -> NoReturn:
        """Raise `UnusableSessionFile` for a field."""
        _refuse(f"{self.path}.{name}" if self.path else name, text, remedy)

    def read_text(
        self, name: str, *, required: bool = False, max_length: int = MAX_FILE_BYTES
    ) -> str:
        """Return a string, empty if it is missing or null."""
        value = self.values.get(name)
        if value is None and not required:
            return ""
        if not isinstance(value, str):
            self.refuse(name, format_message("`{name}` isn't a string.", name=name))
        if len(value) > max_length:
            self.refuse(
                name,
                format_message("`{name}` has {count} characters.", name=name, count=len(value)),
                format_message("Use at most {limit} characters.", limit=max_length),
            )
        return value

    def read_number(self, name: str, *, minimum: int, maximum: int) -> int:
        """Return an integer within limits."""
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            text = format_message(
                "`{name}` isn't an integer from {minimum} to {maximum}.",
                name=name,
                minimum=minimum,
                maximum=maximum,
            )
            self.refuse(name, text)
        return value

    def read_choice(self, name: str, choices: Mapping[str, Any] | tuple[str, ...]) -> str:
        """Return one of the choices."""
        value = self.values.get(name)
        if not isinstance(value, str) or value not in choices:
            text = format_message(
                "`{name}` isn't one of: {choices}.", name=name, choices=", ".join(choices)
            )
            self.refuse(name, text)
        return value

    def read_counts(self, name: str) -> dict[str, int]:
        """Return numbers by name."""
        value = self.values.get(name) or {}
        if not isinstance(value, Mapping) or not all(
            isinstance(count, int) for count in value.values()
        ):
            self.refuse(name, format_message("`{name}` isn't an object of numbers.", name=name))
        return {str(key)[:_MAX_NAME_LENGTH]: count for key, count in value.items()}

    def read_optional_texts(self, *names: str) -> dict[str, str]:
        """Return the named strings that aren't empty."""
        return {name: text for name in names if (text := self.read_text(name))}


class _StepReader:
    """Reads the steps of a file in order, and links each call to its model turn."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.omitted_attachments = 0
        self._last_seq = 0
        # The new number of each message, by its number in the file.
        self._message_seqs: dict[int, int] = {}
        self._turns: dict[int, Step] = {}

    def add_step(self, item: object, path: str) -> None:
        """Check a step and add it."""
        fields = _Fields(item, path)
        seq = fields.read_number("seq", minimum=self._last_seq + 1, maximum=2**31 - 1)
        self._last_seq = seq
        kind = fields.read_choice("kind", tuple(_READERS))
        state = fields.read_choice("state", tuple(Step.State.values))
        step = Step(kind=kind, state=state, seq=len(self.steps) + 2, finished_at=None)
        for name in ("images", "files"):
            attachments = fields.values.get(name)
            self.omitted_attachments += len(attachments) if isinstance(attachments, list) else 0
        _READERS[kind](self, step, fields)
        self.steps.append(step)
        if kind == Step.Kind.MESSAGE:
            self._message_seqs[seq] = step.seq

    def check_conversation(self) -> None:
        """Raise `UnusableSessionFile` if a model couldn't continue the conversation."""
        try:
            order_messages(build_history(self.steps).messages)
        except ValueError:
            text = format_message("A result has no call before it.")
            _refuse("steps", text, _EXPORT_REMEDY)

    def read_message(self, step: Step, fields: _Fields) -> None:
        """Read a message of a person."""
        author = fields.read_text("by", max_length=255)[:_MAX_LABEL_LENGTH]
        step.state = Step.State.DONE
        step.payload = {
            "text": fields.read_text("text", required=True, max_length=MAX_MESSAGE_LENGTH),
            # The file can contain any name.
            "by": f"{author} (imported)" if author else "(imported)",
        }
        if fields.values.get("output_schema") is not None:
            if not isinstance(fields.values["output_schema"], dict):
                fields.refuse("output_schema", format_message("`output_schema` isn't an object."))
            try:
                schema = check_output_schema(fields.values["output_schema"])
            except InvalidInput as problem:
                fields.refuse("output_schema", str(problem), problem.remedy)
            step.payload["output_schema"] = schema
        replaced_seq = fields.values.get("replaces")
        if replaced_seq is not None:
            if not isinstance(replaced_seq, int) or replaced_seq not in self._message_seqs:
                text = format_message("`replaces` isn't the `seq` of an earlier message.")
                fields.refuse("replaces", text)
            step.payload["replaces"] = self._message_seqs[replaced_seq]

    def read_model_turn(self, step: Step, fields: _Fields) -> None:
        """Read a turn of a model; one without an end is imported as failed."""
        step.turn = fields.read_number("turn", minimum=0, maximum=9_999)
        text = fields.read_text("text")
        step.payload = {
            "text": text,
            **fields.read_optional_texts("thinking", "finish", "code", "detail", "remedy"),
        }
        if not self._message_seqs:
            fields.refuse("kind", format_message("No message comes before this turn."))
        if step.state != Step.State.DONE:
            step.state = Step.State.FAILED
            return
        if step.turn in self._turns:
            fields.refuse("turn", format_message("Two turns have the same number."))
        step.payload["message"] = llm_interface.build_assistant_message(step.turn, text, ())
        self._turns[step.turn] = step

    def read_call(self, step: Step, fields: _Fields) -> None:
        """Read a call with its result; one without a result is never made again."""
        step.turn = fields.read_number("turn", minimum=0, maximum=9_999)
        step.index = fields.read_number("index", minimum=0, maximum=_MAX_INDEX)
        self._check_position(step, fields)
        name = fields.read_text("name", required=True)
        if not _TOOL_NAME.fullmatch(name):
            fields.refuse(
                "name",
                format_message("`name` isn't the name of a tool."),
                format_message("Use at most 64 letters, digits, `_` and `-`."),
            )
        arguments = fields.values.get("arguments")
        if arguments is not None and not isinstance(arguments, dict):
            fields.refuse("arguments", format_message("`arguments` isn't an object."))
        flagged, sanitized = fields.read_counts("flagged"), fields.read_counts("sanitized")
        origin = fields.read_optional_texts("code", "rule", "server", "tool")
        text = fields.read_text("text")
        if step.state == Step.State.INTENT:
            step.state, text = Step.State.UNKNOWN, text or INTERRUPTED_TEXT
        step.payload = {
            "name": name,
            "arguments": arguments or {},
            "text": text,
            **origin,
            # Each result is data from outside, also one that our own tools gave.
            "frame": build_frame(
                "imported", origin.get("server", ""), name, flagged=flagged, sanitized=sanitized
            ),
            "flagged": flagged,
            "sanitized": sanitized,
        }
        if fields.values.get("duration_ms") is not None:
            duration = fields.read_number("duration_ms", minimum=0, maximum=2**31 - 1)
            step.payload["duration_ms"] = duration
        call = {"name": name, "arguments": arguments or {}}
        call_id = llm_interface.build_call_id(step.turn, step.index)
        self._turns[step.turn].payload["message"]["calls"].append({"id": call_id, **call})

    def _check_position(self, step: Step, fields: _Fields) -> None:
        if step.turn not in self._turns:
            fields.refuse(
                "turn",
                format_message("No model turn with this number comes before this call."),
                format_message("Import a session with an agent, not the run of a workflow."),
            )
        expected_index = len(self._turns[step.turn].payload["message"]["calls"])
        if step.index != expected_index:
            text = format_message("The next call of this turn is {index}.", index=expected_index)
            fields.refuse("index", text)

    def read_notice(self, step: Step, fields: _Fields) -> None:
        """Read a notice."""
        step.state = Step.State.DONE
        step.payload = {"text": fields.read_text("text")}
        # Notices have effects by their code, such as marks; this one has none.
        step.payload["code"] = "imported_notice"

    def read_end(self, step: Step, fields: _Fields) -> None:
        """Read the end of a run."""
        step.state = Step.State.DONE
        step.payload = fields.read_optional_texts("answer", "code", "detail", "remedy")
        if fields.values.get("output") is not None:
            step.payload["output"] = fields.values["output"]


_READERS: dict[str, Callable[[_StepReader, Step, _Fields], None]] = {
    Step.Kind.MESSAGE.value: _StepReader.read_message,
    Step.Kind.MODEL.value: _StepReader.read_model_turn,
    Step.Kind.CALL.value: _StepReader.read_call,
    Step.Kind.NOTICE.value: _StepReader.read_notice,
    Step.Kind.END.value: _StepReader.read_end,
}


def import_session(principal: Principal, agent: Agent, file: SessionFile) -> Session:
    """Create a finished session of an agent from an exported one; nothing is executed.

    Raises `NotFound` (another organization's agent), `Forbidden`, `Conflict` (`agent_disabled`).
    """
    require_run_permission(principal, agent)
    require_enabled(agent)
    mask = partial(mask_organization_secrets, organization_id=agent.organization_id)
    session = _build_session(principal, agent, file, mask(file.title), mask(file.error_detail))
    notice = Step(
        seq=1,
        kind=Step.Kind.NOTICE,
        state=Step.State.DONE,
        payload={"code": IMPORT_NOTICE_CODE, "text": mask(_describe_import(principal, file))},
    )
    steps = [notice, *file.steps]
    now = timezone.now()
    for step in steps:
        step.session, step.finished_at = session, now
        step.payload = map_texts(step.payload, mask)
    with record_change(
        organization_id=agent.organization_id,
        actor=principal.actor,
        action="session_imported",
        resource_type="session",
        resource_id=str(session.pk),
        resource_name=session.title,
        details=_build_details(agent, file),
        governed=False,
    ):
        session.save(force_insert=True)
        Step.objects.bulk_create(steps, batch_size=500)
        label_imported_session(principal, session)
    return session


def _build_session(
    principal: Principal, agent: Agent, file: SessionFile, title: str, error_detail: str
) -> Session:
    """Return the unsaved session; tokens and cost are zero, since nothing was spent here."""
    return Session(
        organization_id=agent.organization_id,
        agent=agent,
        title=build_title(agent, title) or "Imported session",
        status=file.status,
        error_code=file.error_code,
        error_detail=error_detail,
        started_by_kind=principal.kind,
        started_by_id=principal.id,
        started_by=principal.label,
        token_id=principal.token_id,
        token_calls_per_minute=principal.calls_per_minute,
        turns=file.turns,
        calls=file.calls,
        finished_at=timezone.now(),
    )


def _describe_import(principal: Principal, file: SessionFile) -> str:
    text = (
        f"{principal.label} imported this session from a file. Its calls weren't made or checked "
        "by this installation."
    )
    if file.omitted_attachments:
        text += f" {file.omitted_attachments} images and files weren't imported."
    return text


def _build_details(agent: Agent, file: SessionFile) -> dict[str, Any]:
    return {
        "agent_id": str(agent.pk),
        "agent": agent.slug,
        "source_session": file.source_id,
        "source_agent": file.source_agent,
        "steps": len(file.steps),
        "sha256": file.digest,
    }
