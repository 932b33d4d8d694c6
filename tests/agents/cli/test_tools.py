"""`bonobot agents tools` and `workspace`."""

from pathlib import Path

import pytest

from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_command_line_enables_toolsets_and_attaches_a_folder(acme, bonobot, tmp_path: Path):
    helper = factories.create_agent(acme)
    ran = bonobot(
        "agents", "tools", "helper", "--enable", "shell", "--set", "shell.time_s=90", "--json"
    )
    found = {one["kit"]: one for one in ran.json}
    assert (found["shell"]["on"], found["shell"]["options"]["time_s"]) == (True, 90)
    assert found["git"]["on"] is False
    ran = bonobot("agents", "tools", "helper", "--set", "fetch.hosts=a.example, b.example")
    assert "hosts=a.example,b.example" in ran.out
    assert bonobot("agents", "tools", "helper", "--disable", "shell").status == 0
    helper.refresh_from_db()
    assert helper.builtin_tools == {"fetch": {"hosts": ["a.example", "b.example"]}}
    ran = bonobot("agents", "workspace", "helper", "--attach", str(tmp_path), "--json")
    assert (ran.json["attached"], ran.json["folder"]) == (True, str(tmp_path.resolve()))
    for folder in ("/", "/etc/ssl", "/proc", str(tmp_path / "nowhere"), str(Path.cwd())):
        refused = bonobot("agents", "workspace", "helper", "--attach", folder, "--json")
        assert (refused.status, refused.error["field"]) == (1, "workspace_folder")
    (tmp_path / "within").mkdir()
    other = factories.create_agent(acme, "other")
    refused = bonobot(
        "agents", "workspace", other.slug, "--attach", str(tmp_path / "within"), "--json"
    )
    assert refused.error["code"] == "nested_folders"
    refused = bonobot("agents", "workspace", "helper", "--empty", "--json")
    assert refused.error["code"] == "attached_folder"
    assert bonobot("agents", "workspace", "helper", "--detach", "--json").json["attached"] is False
