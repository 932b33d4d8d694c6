"""Reading the configuration file; `test_cli.py` tests applying it."""

from agents.config_file.read_config import read_config_file

FILE = """
bonobot: 1
model_endpoints:
  big: {name: Big, kind: offline, %s: true, %s: any}
agents:
  helper: {name: Helper, %s: [second]}
"""
NEW, OLD = (
    ("image_input", "fallback_on", "callable_agents"),
    ("sees_images", "falls_over", "may_ask"),
)


def test_fields_are_read_under_their_old_names_when_a_file_has_them():
    new, old = (read_config_file(FILE % names, {}) for names in (NEW, OLD))
    assert new.problems == old.problems == []
    assert old.agents["helper"].callable_agents == ("second",)
    assert old.endpoints["big"].values == new.endpoints["big"].values
    assert old.endpoints["big"].values["image_input"] is True
    assert old.endpoints["big"].values["fallback_on"] == "any"


def test_an_old_name_is_unknown_when_the_file_has_the_new_one_too():
    text = FILE.replace("name: Helper", "name: Helper, callable_agents: []") % OLD
    [problem] = read_config_file(text, {}).problems
    assert (problem.code, problem.extra["line"]) == ("unknown_field", 6)
