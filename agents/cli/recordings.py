"""The commands `agents record`, `recordings`, `replay` and `remove-recording`."""

import argparse
import json
from time import monotonic, sleep
from typing import Any

from agents.api.recordings import RecordingReplayDetailSerializer, RecordingSerializer
from agents.cli import sessions
from agents.cli.policy_simulations import add_policy_arguments, collect_policy_options
from agents.evaluation import replay_runner as playing
from agents.evaluation.services import ReplayOverrides, record, remove, replay
from agents.models import Agent, Recording, Replay
from agents.sessions.leases import has_live_runner
from agents.sessions.worker import get_session_runner
from bonobot.core.cli.command_group import (
    CommandContext,
    CommandFailed,
    CommandVerb,
    build_table,
    read_text,
)
from bonobot.core.problems import ServiceUnavailable
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible

LOOK_S = 0.5
SHOWN = 200
LISTED = 100
WORDS = {
    "call_added": "call added",
    "call_missing": "call missing",
    "arguments_changed": "arguments changed",
    "decision_changed": "decided otherwise",
    "result_missing": "no result recorded",
    "answer_changed": "answer changed",
    "ending_changed": "ended otherwise",
}


def _serialize_row(shape: Any, row: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(shape(row).data, default=str))
    return found


def _record(cli: CommandContext, options: argparse.Namespace) -> None:
    made = record(cli.principal, sessions.find(cli, options.session))
    cli.emit(_serialize_row(RecordingSerializer, made))
    cli.say(f"Recorded with {made.turns} turns and {made.calls} calls. Try a change on it:")
    cli.say(f"bonobot agents replay {made.pk} --instructions-file FILE")


def _list_recordings(cli: CommandContext, options: argparse.Namespace) -> None:
    rows: Any = Recording.objects.visible_to(cli.principal).select_related("agent")
    if options.slug:
        agent = Agent.objects.get_or_404(cli.principal.organization_id, slug=options.slug)
        rows = rows.filter(agent=agent)
    found = [
        _serialize_row(RecordingSerializer, row) for row in rows.defer("conversation")[:LISTED]
    ]
    shown = [
        (one["id"], one["agent"], make_visible(one["title"], 60), one["turns"], one["calls"])
        for one in found
    ]
    empty = "No recordings yet. Make one: bonobot agents record SESSION"
    cli.emit(
        found, build_table("ID", "AGENT", "SESSION", "TURNS", "CALLS", rows=shown, empty=empty)
    )


def _remove(cli: CommandContext, options: argparse.Namespace) -> None:
    recording = _get_recording(cli, options.recording)
    told = _serialize_row(RecordingSerializer, recording)
    remove(cli.principal, recording)
    cli.emit(told)
    cli.say("The recording is gone, with its replays.")


def _replay(cli: CommandContext, options: argparse.Namespace) -> None:
    recording = _get_recording(cli, options.recording)
    changed = ReplayOverrides(
        instructions=read_text(options.instructions_file, "--instructions-file"),
        endpoint=options.endpoint,
        policy=collect_policy_options(recording.agent, options),
    )
    made = replay(cli.principal, recording, changed)
    if not options.no_wait:
        with cli.waiting("Replaying …"):
            _wait_for_replay(made, options.timeout)
    made = Replay.objects.select_related("recording").get(pk=made.pk)
    told = _serialize_row(RecordingReplayDetailSerializer, made)
    cli.emit(told, _render_differences(told))
    _show_comparison(cli, told)
    if made.differs or made.status == Replay.Status.FAILED:
        raise CommandFailed


def _wait_for_replay(made: Replay, timeout_s: float) -> None:
    """Wait for the end of a replay; without a worker, run it in this process."""
    if not has_live_runner(besides=get_session_runner().runner_id):
        get_runtime().call(playing.take, made.pk, timeout_s=timeout_s)
    until = monotonic() + timeout_s
    while Replay.objects.filter(pk=made.pk, finished_at=None).exists():
        if monotonic() > until:
            raise ServiceUnavailable(
                f"The replay {made.pk} is still running after {timeout_s:.0f} s.",
                code="still_running",
                remedy="It goes on; look at it in the admin, or give a longer --timeout.",
            )
        sleep(LOOK_S)


def _render_differences(told: dict[str, Any]) -> Any:
    rows = [
        (
            one["message"],
            one["turn"] or "",
            WORDS[one["kind"]],
            one["tool"],
            make_visible(one["before"], SHOWN),
            make_visible(one["after"], SHOWN),
            one["code"],
        )
        for one in told["differences"]
    ]
    empty = {"done": "Nothing differs.", "failed": ""}.get(told["status"], "It is being made.")
    columns = ("MESSAGE", "TURN", "WHAT", "TOOL", "BEFORE", "AFTER", "CODE")
    return build_table(*columns, rows=rows, empty=empty)


def _show_comparison(cli: CommandContext, told: dict[str, Any]) -> None:
    for one in told["differences"]:
        for line in one["diff"]:
            cli.say(make_visible(line, SHOWN))
    if sides := told["sides"]:
        before, after = sides["before"], sides["after"]
        named = {"turns": "turns", "calls": "calls", "tokens": "tokens"}
        said = [f"{before[key]:,} → {after[key]:,} {word}" for key, word in named.items()]
        cost = [f"${side['cost_microusd'] / 1_000_000:.4f}" for side in (before, after)]
        cli.say(f"{', '.join(said)}, {cost[0]} → {cost[1]}")
    if told["error_code"]:
        cli.say(f"{told['error_code']}: {make_visible(told['error_detail'])}")


def _get_recording(cli: CommandContext, pk: str) -> Recording:
    rows: Any = Recording.objects.visible_to(cli.principal).select_related("agent")
    found: Recording = rows.get_or_404(cli.principal.organization_id, pk=pk)
    return found


def _add_session_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", metavar="SESSION", help="its id")


def _add_recording_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recording", metavar="RECORDING", help="its id")


def _add_agent_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG", nargs="?", help="those of one agent")


def _replay_arguments(parser: argparse.ArgumentParser) -> None:
    _add_recording_argument(parser)
    parser.add_argument("--instructions-file", metavar="FILE", help="other instructions; -: stdin")
    parser.add_argument("--endpoint", metavar="NAME", help="slug of another model endpoint")
    add_policy_arguments(parser)
    parser.add_argument("--no-wait", action="store_true", help="only have it made")
    parser.add_argument("--timeout", type=float, default=3600, metavar="SECONDS")


VERBS = (
    CommandVerb(
        "record",
        "Keep a session to try changes of its agent on it.",
        _record,
        _add_session_argument,
        ("agents record 0198c0de-…",),
    ),
    CommandVerb(
        "recordings",
        "List the recorded sessions.",
        _list_recordings,
        _add_agent_argument,
        ("agents recordings demo", "agents recordings --json"),
    ),
    CommandVerb(
        "replay",
        "Tell a recording to the agent as it would be; exit status 1 where something differs.",
        _replay,
        _replay_arguments,
        (
            "agents replay 0198c0de-… --instructions-file prompt.txt",
            "agents replay 0198c0de-… --endpoint local --json",
            "agents replay 0198c0de-… --policy stricter.yaml",
        ),
    ),
    CommandVerb(
        "remove-recording",
        "Remove a recording with its replays.",
        _remove,
        _add_recording_argument,
        ("agents remove-recording 0198c0de-…",),
    ),
)
