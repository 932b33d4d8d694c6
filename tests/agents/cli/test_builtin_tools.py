"""`bonobot agents tools` and `bonobot agents workspace`."""

from pathlib import Path

import pytest

from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_command_line_enables_toolsets_and_attaches_a_folder(acme, bonobot, tmp_path: Path):
    helper = factories.create_agent(acme)
    result = bonobot(
        "agents", "tools", "helper", "--enable", "shell", "--set", "shell.time_s=90", "--json"
    )
    toolsets = {toolset["toolset"]: toolset for toolset in result.json}
    assert (toolsets["shell"]["enabled"], toolsets["shell"]["options"]["time_s"]) == (True, 90)
    assert toolsets["git"]["enabled"] is False
    result = bonobot("agents", "tools", "helper", "--set", "fetch.hosts=a.example, b.example")
    assert "hosts=a.example,b.example" in result.out
    assert bonobot("agents", "tools", "helper", "--disable", "shell").status == 0
    helper.refresh_from_db()
    assert helper.builtin_tools == {"fetch": {"hosts": ["a.example", "b.example"]}}
    result = bonobot("agents", "workspace", "helper", "--attach", str(tmp_path), "--json")
    assert (result.json["attached"], result.json["folder"]) == (True, str(tmp_path.resolve()))
    for folder in ("/", "/etc/ssl", "/proc", str(tmp_path / "nowhere"), str(Path.cwd())):
        denied = bonobot("agents", "workspace", "helper", "--attach", folder, "--json")
        assert (denied.status, denied.error["field"]) == (1, "workspace_folder")
    (tmp_path / "within").mkdir()
    other_agent = factories.create_agent(acme, "other")
    denied = bonobot(
        "agents", "workspace", other_agent.slug, "--attach", str(tmp_path / "within"), "--json"
    )
    assert denied.error["code"] == "nested_folders"
    denied = bonobot("agents", "workspace", "helper", "--empty", "--json")
    assert denied.error["code"] == "attached_folder"
    assert bonobot("agents", "workspace", "helper", "--detach", "--json").json["attached"] is False
