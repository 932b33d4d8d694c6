"""Recordings and replays over REST, on the command line and in the admin."""

import json
import re

import pytest
from django.template.loader import render_to_string
from django.utils import translation

from agents.evaluation import replays
from agents.models import Agent, Recording, Replay
from bonobot.accounts.roles import Role
from bonobot.core.runtime import get_runtime
from tests import admin_client, factories, rest
from tests.command_line import bonobot as bonobot  # the fixture

pytestmark = pytest.mark.django_db(transaction=True)

ECHO = '/mcp_workshop_echo {"text": "hello"}'


def test_rest_records_and_replays_a_session(acme, helper, workshop, run):
    operator = rest.as_role(acme, Role.OPERATOR)
    session = run(ECHO)
    recording = operator.post("recordings", {"session_id": str(session.pk)})
    assert (recording.status, recording.json["agent"], recording.json["calls"]) == (
        201,
        "helper",
        1,
    )
    duplicate = operator.post("recordings", {"session_id": str(session.pk)})
    assert (duplicate.status, duplicate.code) == (409, "already_recorded")
    path = f"recordings/{recording.json['id']}"
    first = operator.get(path).json["conversation"]["exchanges"][0]
    assert first["turns"][0]["calls"][0]["arguments"] == {"text": "hello"}
    policy = {"mode": "denylist", "deny": ["mcp_workshop_echo"]}
    invalid = operator.post(f"{path}/replays", {"policy": {**policy, "deny": ["mcp_nothing_x"]}})
    assert invalid.status == 400
    invalid = operator.post(f"{path}/replays", {"endpoint": "nothing"})
    assert (invalid.status, invalid.json["field"]) == (404, "endpoint")
    replay = operator.post(f"{path}/replays", {"policy": policy})
    assert (replay.status, replay.json["status"], replay.json["sides"]) == (201, "queued", None)
    get_runtime().call(replays.run_replay, Replay.objects.get().pk)
    result = operator.get(f"{path}/replays/{replay.json['id']}").json
    assert (result["status"], result["differs"], result["changed"]["policy"]["mode"]) == (
        "done",
        True,
        "denylist",
    )
    assert result["differences"][0]["kind"] == "decision_changed"
    assert result["sides"]["before"]["calls"] == result["sides"]["after"]["calls"] == 1
    listed = operator.get(f"{path}/replays?differs=true").json["results"]
    assert [row["id"] for row in listed] == [replay.json["id"]]
    assert len(operator.get("recordings?agent=helper").json["results"]) == 1
    auditor = rest.as_role(acme, Role.AUDITOR)
    assert auditor.get(path).status == 200
    assert auditor.post(f"{path}/replays", {}).status == 403
    limited_auditor = rest.as_role(acme, Role.AUDITOR, factories.create_agent(acme, "other"))
    assert limited_auditor.get(path).status == 404
    assert operator.delete(path).status == 204
    assert not Recording.objects.exists()


def test_the_command_line_records_and_replays_a_session(
    bonobot, acme, helper, workshop, run, runner, tmp_path
):
    session = run(ECHO)
    get_runtime().call(runner.drain)  # without a worker the command runs the replay itself
    recorded = bonobot("agents", "record", str(session.pk), "--json")
    assert recorded.status == 0, recorded.err
    pk = recorded.json["id"]
    assert [row["id"] for row in bonobot("agents", "recordings", "helper", "--json").json] == [pk]
    unchanged = bonobot("agents", "replay", pk, "--json")
    assert (unchanged.status, unchanged.json["differs"]) == (0, False), unchanged.err
    (tmp_path / "policy.yaml").write_text("mode: none\n")
    (tmp_path / "prompt.txt").write_text("Be brief.")
    options = ("--policy", str(tmp_path / "policy.yaml"))
    prompt = ("--instructions-file", str(tmp_path / "prompt.txt"), "--endpoint", "offline")
    denied = bonobot("agents", "replay", pk, *options, *prompt, "--json")
    assert (denied.status, denied.json["differs"]) == (1, True)
    assert json.loads(denied.out)["changed"]["instructions"] == "Be brief."
    output = bonobot("agents", "replay", pk, *options)
    assert output.status == 1
    assert "decision changed" in output.out + output.err
    missing = bonobot("agents", "replay", pk, "--instructions-file", "nothing", "--json")
    assert (missing.status, missing.error["code"]) == (1, "unusable_file")
    assert bonobot("agents", "remove-recording", pk).status == 0
    assert Agent.objects.get().instructions == helper.instructions


def test_a_replay_names_decisions_and_endings_in_words_and_links_codes():
    def render(**difference):
        return render_to_string(
            "admin/recordings/difference_values.html", {"difference": difference}
        )

    with translation.override("de"):
        decision = admin_client.get_text(
            render(kind="decision_changed", before="allow", after="deny")
        )
        ending = render(kind="ending_changed", before="", after="model_error")
    assert "erlauben" in decision
    assert "ablehnen" in decision
    assert "allow" not in decision
    assert "beantwortet → model_error" in admin_client.get_text(ending)
    assert 'refusals#model_error"' in ending
    arguments = admin_client.get_text(render(kind="arguments_changed", before="{}", after="[1]"))
    assert arguments.split() == ["{}", "→", "[1]"]


def test_the_admin_records_and_replays_a_session(acme, helper, workshop, run):
    session = run(ECHO)
    operator = admin_client.sign_in(acme, Role.OPERATOR)
    assert "No recordings yet." in admin_client.get_text(
        operator.get("agents_agent_recordings", helper.pk)
    )
    page = admin_client.get_text(operator.post("agents_session_record", session.pk))
    assert "No replays yet." in page
    assert "View recording" in admin_client.get_text(
        operator.get("agents_session_change", session.pk)
    )
    recording = Recording.objects.get()
    assert session.title in admin_client.get_text(
        operator.get("agents_agent_recordings", helper.pk)
    )
    address = (
        f"{admin_client.build_url('agents_agent_recording', helper.pk)}?recording={recording.pk}"
    )
    fields = {"instructions": helper.instructions, "endpoint": "offline", "mode": "all"}
    rejected = operator.send(address, {**fields, "deny": "mcp_nothing_x"}, status=400)
    assert "mcp_nothing_x" in admin_client.get_text(rejected)
    page = admin_client.get_text(operator.send(address, {**fields, "mode": "none"}))
    assert "Replay in progress." in page
    replay = Replay.objects.get()
    assert set(replay.changed) == {"policy"}
    get_runtime().call(replays.run_replay, replay.pk)
    page = admin_client.get_text(operator.get("agents_agent_replay", helper.pk, replay=replay.pk))
    assert "Decision changed mcp_workshop_echo" in page
    assert re.search(r"\ballow\b.* → .*\bdeny\b", page)
    assert "denied_by_policy" in page
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    page = admin_client.get_text(
        auditor.get("agents_agent_recording", helper.pk, recording=recording.pk)
    )
    assert "differs" in page
    assert "What if Change something" not in page
    operator.post("agents_agent_remove_recording", helper.pk, recording=str(recording.pk))
    assert not Recording.objects.exists()
