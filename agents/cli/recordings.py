"""The commands `agents record`, `recordings`, `replay` and `remove-recording`."""

import argparse
import json
from time import monotonic, sleep
from typing import Any

from agents.cli import sessions
from agents.cli.policies import POLICY_ARGUMENTS, collect_policy_options
from agents.models import Agent, Recording, Replay
from bonobot.core.cli.command_group import (
    Argument,
    CommandContext,
    CommandFailed,
    CommandVerb,
    read_text,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.i18n.messages import format_count
from bonobot.core.problems import ServiceUnavailable
from bonobot.core.text.amounts import MICROUSD_PER_USD
from bonobot.core.text.untrusted_text import make_visible

POLL_INTERVAL_S = 0.5
MAX_TEXT_SHOWN = 200
MAX_LISTED = 100
DIFFERENCE_LABELS = {
    "call_added": "call added",
    "call_missing": "call missing",
    "arguments_changed": "arguments changed",
    "decision_changed": "decision changed",
    "result_missing": "no result recorded",
    "answer_changed": "answer changed",
    "ending_changed": "outcome changed",
}


def _serialize_recording(recording: Recording) -> dict[str, Any]:
    from agents.api.recordings import RecordingSerializer  # REST's libraries load slowly

    return _convert_to_json(RecordingSerializer(recording).data)


def _serialize_replay(replay: Replay) -> dict[str, Any]:
    from agents.api.recordings import RecordingReplayDetailSerializer

    return _convert_to_json(RecordingReplayDetailSerializer(replay).data)


def _convert_to_json(data: Any) -> dict[str, Any]:
    converted: dict[str, Any] = json.loads(json.dumps(data, default=str))
    return converted


def _record_session(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.evaluation.recordings import create_recording

    recording = create_recording(cli.principal, sessions.get_session(cli, options.session))
    cli.emit(_serialize_recording(recording))
    cli.print_message(
        f"Recorded {format_count(recording.turns, 'turn')} and "
        f"{format_count(recording.calls, 'call')}. To test a change on it:"
    )
    cli.print_message(f"bonobot agents replay {recording.pk} --instructions-file FILE")


def _list_recordings(cli: CommandContext, options: argparse.Namespace) -> None:
    recordings = Recording.objects.visible_to(cli.principal).select_related("agent")
    if options.slug:
        agent = cli.get_row(Agent, slug=options.slug)
        recordings = recordings.filter(agent=agent)
    rows = recordings.defer("conversation")[:MAX_LISTED]
    serialized = [_serialize_recording(row) for row in rows]
    table_rows = [
        (
            recording["id"],
            recording["agent"],
            make_visible(recording["title"], 60),
            recording["turns"],
            recording["calls"],
        )
        for recording in serialized
    ]
    empty = "No recordings yet. Create one: bonobot agents record SESSION"
    cli.emit(
        serialized,
        build_table("ID", "AGENT", "SESSION", "TURNS", "CALLS", rows=table_rows, empty=empty),
    )


def _delete_recording(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.evaluation.recordings import delete_recording

    recording = _get_recording(cli, options.recording)
    serialized = _serialize_recording(recording)
    delete_recording(cli.principal, recording)
    cli.emit(serialized)
    cli.print_message("The recording and its replays were deleted.")


def _replay_recording(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.evaluation.replays import ReplayOverrides, create_replay

    recording = _get_recording(cli, options.recording)
    overrides = ReplayOverrides(
        instructions=read_text(options.instructions_file, "--instructions-file"),
        endpoint=options.endpoint,
        policy=collect_policy_options(recording.agent, options),
    )
    new_replay = create_replay(cli.principal, recording, overrides)
    if not options.no_wait:
        with cli.show_spinner("Replaying…"):
            _wait_for_replay(new_replay, options.timeout)
    new_replay = Replay.objects.select_related("recording").get(pk=new_replay.pk)
    serialized = _serialize_replay(new_replay)
    cli.emit(serialized, _render_differences(serialized))
    _show_comparison(cli, serialized)
    if new_replay.differs or new_replay.status == Replay.Status.FAILED:
        raise CommandFailed


def _wait_for_replay(pending_replay: Replay, timeout_s: float) -> None:
    """Wait for the end of a replay; without a worker, run it in this process."""
    from agents.evaluation import replays as playing
    from agents.sessions.leases import has_live_runner
    from bonobot.core.runtime import get_runtime

    if not has_live_runner():
        get_runtime().call(playing.run_replay, pending_replay.pk, timeout_s=timeout_s)
    deadline = monotonic() + timeout_s
    while Replay.objects.filter(pk=pending_replay.pk, finished_at=None).exists():
        if monotonic() > deadline:
            raise ServiceUnavailable(
                f"The replay {pending_replay.pk} is still running after {timeout_s:.0f} s.",
                code="still_running",
                remedy="It continues to run. View it in the admin, or use a longer --timeout.",
            )
        sleep(POLL_INTERVAL_S)


def _render_differences(replay_data: dict[str, Any]) -> Any:
    rows = [
        (
            difference["message"],
            difference["turn"] or "",
            DIFFERENCE_LABELS[difference["kind"]],
            difference["tool"],
            make_visible(difference["before"], MAX_TEXT_SHOWN),
            make_visible(difference["after"], MAX_TEXT_SHOWN),
            difference["code"],
        )
        for difference in replay_data["differences"]
    ]
    empty = {"done": "No differences.", "failed": ""}.get(
        replay_data["status"], "Replay in progress."
    )
    columns = ("MESSAGE", "TURN", "DIFFERENCE", "TOOL", "BEFORE", "AFTER", "CODE")
    return build_table(*columns, rows=rows, empty=empty)


def _show_comparison(cli: CommandContext, replay_data: dict[str, Any]) -> None:
    for difference in replay_data["differences"]:
        for line in difference["diff"]:
            cli.print_message(make_visible(line, MAX_TEXT_SHOWN))
    if sides := replay_data["sides"]:
        before, after = sides["before"], sides["after"]
        labels = {"turns": "turns", "calls": "calls", "tokens": "tokens"}
        changes = [f"{before[key]:,} → {after[key]:,} {word}" for key, word in labels.items()]
        cost = [f"${side['cost_microusd'] / MICROUSD_PER_USD:.4f}" for side in (before, after)]
        cli.print_message(f"{', '.join(changes)}, {cost[0]} → {cost[1]}")
    if replay_data["error_code"]:
        cli.print_message(
            f"{replay_data['error_code']}: {make_visible(replay_data['error_detail'])}"
        )


def _get_recording(cli: CommandContext, pk: str) -> Recording:
    recordings = Recording.objects.visible_to(cli.principal).select_related("agent")
    return cli.get_row(Recording, recordings, pk=pk)


_RECORDING_ARGUMENT = (Argument("RECORDING", "ID of the recording"),)


_REPLAY_ARGUMENTS = (
    *_RECORDING_ARGUMENT,
    Argument("--instructions-file FILE", "File with other instructions. -: standard input"),
    Argument("--endpoint NAME", "Slug of another model endpoint"),
    *POLICY_ARGUMENTS,
    Argument("--no-wait", "Start the replay without waiting for it"),
    sessions.TIMEOUT_ARGUMENT,
)


VERBS = (
    CommandVerb(
        "record",
        "Record a session, to test changes to its agent",
        _record_session,
        arguments=(Argument("SESSION", "ID of the session"),),
        examples=("agents record 0198c0de-…",),
    ),
    CommandVerb(
        "recordings",
        "List recordings",
        _list_recordings,
        arguments=(Argument("SLUG", "Only recordings of this agent", nargs="?"),),
        examples=("agents recordings demo", "agents recordings --json"),
    ),
    CommandVerb(
        "replay",
        "Replay a recording with other settings. The exit status is 1 if the replay differs.",
        _replay_recording,
        arguments=_REPLAY_ARGUMENTS,
        examples=(
            "agents replay 0198c0de-… --instructions-file prompt.txt",
            "agents replay 0198c0de-… --endpoint local --json",
            "agents replay 0198c0de-… --policy stricter.yaml",
        ),
    ),
    CommandVerb(
        "remove-recording",
        "Delete a recording and its replays",
        _delete_recording,
        arguments=_RECORDING_ARGUMENT,
        examples=("agents remove-recording 0198c0de-…",),
        confirmation="Delete the recording {recording} and its replays?",
    ),
)
