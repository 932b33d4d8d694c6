"""`bonobot agents record`, `recordings` and `replay`: sessions tried on a changed agent."""

import argparse
import json
from time import monotonic, sleep
from typing import Any

from agents.api.recordings import OneRecordingReplayShape, RecordingShape
from agents.evaluation import running as playing
from agents.evaluation.recordings import record, remove
from agents.evaluation.replays import Change, replay
from agents.models import Agent, Recording, Replay
from agents.sessions.runner import session_runner
from agents.sessions.runners import any_alive
from bonobot.cli import running
from bonobot.cli.group import Cli, Failed, Verb, table
from bonobot.cli.inputs import read_text
from bonobot.cli.replaying import policy_arguments, wanted
from bonobot.lib.problems import Unavailable
from bonobot.lib.runtime import runtime
from bonobot.lib.untrusted import visible

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


def _plain(shape: Any, row: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(shape(row).data, default=str))
    return found


def _record(cli: Cli, options: argparse.Namespace) -> None:
    made = record(cli.principal, running.find(cli, options.session))
    cli.emit(_plain(RecordingShape, made))
    cli.say(f"Recorded with {made.turns} turns and {made.calls} calls. Try a change on it:")
    cli.say(f"bonobot agents replay {made.pk} --instructions-file FILE")


def _recordings(cli: Cli, options: argparse.Namespace) -> None:
    rows: Any = Recording.objects.visible_to(cli.principal).select_related("agent")
    if options.slug:
        agent = Agent.objects.get_or_404(cli.principal.organization_id, slug=options.slug)
        rows = rows.filter(agent=agent)
    found = [_plain(RecordingShape, row) for row in rows.defer("conversation")[:LISTED]]
    shown = [
        (one["id"], one["agent"], visible(one["title"], 60), one["turns"], one["calls"])
        for one in found
    ]
    empty = "No recordings yet. Make one: bonobot agents record SESSION"
    cli.emit(found, table("ID", "AGENT", "SESSION", "TURNS", "CALLS", rows=shown, empty=empty))


def _remove(cli: Cli, options: argparse.Namespace) -> None:
    recording = _found(cli, options.recording)
    told = _plain(RecordingShape, recording)
    remove(cli.principal, recording)
    cli.emit(told)
    cli.say("The recording is gone, with its replays.")


def _replay(cli: Cli, options: argparse.Namespace) -> None:
    recording = _found(cli, options.recording)
    changed = Change(
        instructions=read_text(options.instructions_file, "--instructions-file"),
        endpoint=options.endpoint,
        policy=wanted(recording.agent, options),
    )
    made = replay(cli.principal, recording, changed)
    if not options.no_wait:
        with cli.waiting("Replaying …"):
            _until_ended(made, options.timeout)
    made = Replay.objects.select_related("recording").get(pk=made.pk)
    told = _plain(OneRecordingReplayShape, made)
    cli.emit(told, _drawn(told))
    _say(cli, told)
    if made.differs or made.status == Replay.Status.FAILED:
        raise Failed


def _until_ended(made: Replay, timeout_s: float) -> None:
    """Wait for the end of a replay; without a worker, this process makes it."""
    if not any_alive(besides=session_runner().runner_id):
        runtime().call(playing.take, made.pk, timeout_s=timeout_s)
    until = monotonic() + timeout_s
    while Replay.objects.filter(pk=made.pk, finished_at=None).exists():
        if monotonic() > until:
            raise Unavailable(
                f"The replay {made.pk} is still running after {timeout_s:.0f} s.",
                code="still_running",
                remedy="It goes on; look at it in the admin, or give a longer --timeout.",
            )
        sleep(LOOK_S)


def _drawn(told: dict[str, Any]) -> Any:
    rows = [
        (
            one["message"],
            one["turn"] or "",
            WORDS[one["kind"]],
            one["tool"],
            visible(one["before"], SHOWN),
            visible(one["after"], SHOWN),
            one["code"],
        )
        for one in told["differences"]
    ]
    empty = {"done": "Nothing differs.", "failed": ""}.get(told["status"], "It is being made.")
    columns = ("MESSAGE", "TURN", "WHAT", "TOOL", "BEFORE", "AFTER", "CODE")
    return table(*columns, rows=rows, empty=empty)


def _say(cli: Cli, told: dict[str, Any]) -> None:
    for one in told["differences"]:
        for line in one["diff"]:
            cli.say(visible(line, SHOWN))
    if sides := told["sides"]:
        before, after = sides["before"], sides["after"]
        named = {"turns": "turns", "calls": "calls", "tokens": "tokens"}
        said = [f"{before[key]:,} → {after[key]:,} {word}" for key, word in named.items()]
        cost = [f"${side['cost_microusd'] / 1_000_000:.4f}" for side in (before, after)]
        cli.say(f"{', '.join(said)}, {cost[0]} → {cost[1]}")
    if told["error_code"]:
        cli.say(f"{told['error_code']}: {visible(told['error_detail'])}")


def _found(cli: Cli, pk: str) -> Recording:
    rows: Any = Recording.objects.visible_to(cli.principal).select_related("agent")
    found: Recording = rows.get_or_404(cli.principal.organization_id, pk=pk)
    return found


def _session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", metavar="SESSION", help="its id")


def _recording(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recording", metavar="RECORDING", help="its id")


def _slug(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG", nargs="?", help="those of one agent")


def _replay_arguments(parser: argparse.ArgumentParser) -> None:
    _recording(parser)
    parser.add_argument("--instructions-file", metavar="FILE", help="other instructions; -: stdin")
    parser.add_argument("--endpoint", metavar="NAME", help="slug of another model endpoint")
    policy_arguments(parser)
    parser.add_argument("--no-wait", action="store_true", help="only have it made")
    parser.add_argument("--timeout", type=float, default=3600, metavar="SECONDS")


VERBS = (
    Verb(
        "record",
        "Keep a session to try changes of its agent on it.",
        _record,
        _session,
        ("agents record 0198c0de-…",),
    ),
    Verb(
        "recordings",
        "List the recorded sessions.",
        _recordings,
        _slug,
        ("agents recordings demo", "agents recordings --json"),
    ),
    Verb(
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
    Verb(
        "remove-recording",
        "Remove a recording with its replays.",
        _remove,
        _recording,
        ("agents remove-recording 0198c0de-…",),
    ),
)
