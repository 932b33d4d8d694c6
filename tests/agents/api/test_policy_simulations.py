"""Policy simulations and shadow mode over REST."""

import pytest

from agents.policies.services import PolicySpec, load_policy_spec
from bonobot.accounts.roles import Role
from bonobot.ledger.writer.writer_thread import get_writer
from tests import factories, rest
from tests.agents.audit_history import history

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def agent(acme):
    yield factories.create_agent(acme, "second")
    get_writer().close()


def test_a_simulated_policy_changes_nothing(acme, agent):
    history(agent, 3)
    client = rest.as_role(acme, Role.AUDITOR)
    body = {"mode": "denylist", "deny": ["read_result"], "days": 2}
    response = client.post(f"agents/{agent.pk}/tool-policy/simulate", body)
    assert (response.status, response.json["changed"]) == (200, 3)
    assert [row["after"] for row in response.json["changed_groups"]] == ["deny"]
    assert load_policy_spec(agent).mode == "all"
    response = client.post(f"agents/{agent.pk}/tool-policy/simulate", body | {"days": 0})
    assert response.status == 400


def test_a_draft_is_saved_enforced_and_discarded(acme, agent):
    client = rest.as_role(acme, Role.OPERATOR)
    path = f"agents/{agent.pk}/tool-policy/draft"
    assert (client.get(path).status, client.get(path).code) == (404, "no_draft")
    assert client.put(path, {"mode": "none"}).json["mode"] == "none"
    assert client.get(path).json["since"]
    assert client.get(f"{path}/shadow").json["rows"] == 0
    enforced = client.post(f"{path}/enforce").json
    assert enforced.items() >= PolicySpec("none").as_dict().items()
    assert client.get(f"{path}/shadow").code == "no_draft"
    client.put(path, {"mode": "all"})
    assert client.delete(path).status == 204
    assert client.delete(path).code == "no_draft"
    assert client.put(path, {"mode": "sometimes"}).code == "unknown_mode"


def test_the_organizations_policy_is_simulated_and_drafted(acme, agent):
    history(agent, 2)
    owner = rest.as_role(acme, Role.OWNER)
    body = {"mode": "all", "deny": ["read_result"], "days": 2}
    response = owner.post("tool-policy/simulate", body)
    assert (response.status, response.json["changed"]) == (200, 2)
    assert owner.get("tool-policy/draft").code == "no_draft"
    assert owner.put("tool-policy/draft", {"mode": "none"}).json["mode"] == "none"
    assert owner.get("tool-policy/draft/shadow").json["rows"] == 0
    operator = rest.as_role(acme, Role.OPERATOR)
    assert operator.post("tool-policy/draft/enforce").status == 403
    enforced = owner.post("tool-policy/draft/enforce").json
    assert enforced.items() >= PolicySpec("none").as_dict().items()
    owner.put("tool-policy/draft", {"mode": "all"})
    assert owner.delete("tool-policy/draft").status == 204
