"""Identity providers, as owners add and change them: in the admin, over REST, on the host."""

from collections.abc import Iterator

import pytest
from django.core.management import call_command

from bonobot.accounts.models import Organization, Provider
from bonobot.accounts.principals import build_user_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.sso import services as sso
from bonobot.core.http.egress import EgressDenied
from bonobot.core.problems import Conflict, Forbidden, InvalidInput
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories, rest
from tests.bonobot.accounts.sso.provider_process import person, running

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running() as found:
        yield found


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


def test_owners_manage_providers_and_secrets_stay_encrypted(acme: Organization, url: str) -> None:
    boss = build_user_principal(person(acme, Role.OWNER), acme)
    said = {"name": "Login", "client_id": "bonobot", "client_secret": "s3cret"}
    for wrong, error in (
        ({"url": "http://127.0.0.1:1", "allow_private": True}, Forbidden),
        ({"url": "http://login.example.com"}, EgressDenied),
        ({"url": "https://login.example.com", "creates": True}, InvalidInput),
        ({"url": "https://login.example.com", "role": ""}, InvalidInput),
        ({"url": "https://login.example.com", "domains": ["no domain"]}, InvalidInput),
        ({"url": "https://login.example.com", "strange": 1}, InvalidInput),
    ):
        with pytest.raises(error):
            sso.create_provider(boss, **said | wrong)
    provider = sso.create_provider(boss, url="https://login.example.com", **said)
    assert provider.client_secret.open() == "s3cret"
    assert "s3cret" not in str(AuditRow.objects.get(action="provider_added").__dict__)
    with pytest.raises(Conflict):
        sso.create_provider(boss, url="https://login.example.com", **said)
    with pytest.raises(InvalidInput) as caught:
        sso.update_provider(boss, provider, url="https://other.example.com")
    assert caught.value.code == "credential_needed"  # one provider's is never sent to another
    provider.refresh_from_db()
    sso.update_provider(boss, provider, url="https://other.example.com", client_secret="")
    provider.refresh_from_db()
    assert not provider.client_secret
    operator = factories.create_member(acme, Role.OPERATOR, "otto")
    inner = factories.create_provider(acme, "http://127.0.0.1:1", "Inner", allow_private=True)
    sso.update_provider(boss, inner, name="Ours")
    with pytest.raises(Forbidden):
        sso.update_provider(boss, inner, url="http://127.0.0.1:2")
    with pytest.raises(Forbidden):
        sso.create_provider(operator, url="https://x.example.com", **said)


def test_the_admin_creates_updates_and_deletes_a_provider(acme: Organization) -> None:
    seat = admin_client.sit(acme, Role.OWNER)
    said = {"name": "Login", "url": "https://login.example.com", "client_id": "bonobot"}
    said |= {"secret": "s3cret", "domains": "example.com b.example", "role": "member"}
    assert str(acme.pk) in seat.get("tenancy_provider_add")
    seat.post("tenancy_provider_add", **said, enabled="on")
    row = Provider.objects.get()
    assert (row.domains, row.client_secret.open()) == (["example.com", "b.example"], "s3cret")
    seat.post("tenancy_provider_change", row.pk, **said | {"secret": "********", "name": "Acme"})
    row.refresh_from_db()
    assert (row.name, row.enabled, row.client_secret.open()) == ("Acme", False, "s3cret")
    assert "s3cret" not in seat.get("tenancy_provider_change", row.pk)
    seat.post("tenancy_provider_delete", row.pk, post="yes")
    assert not Provider.objects.exists()


def test_rest_and_the_command_line_manage_providers_too(
    acme: Organization, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--org", acme.slug)
    said = ("--url", url, "--client-id", "bonobot", "--client-secret", "x", "--allow-private")
    call_command("sso", "add", "Login", *said, *where)
    call_command("sso", "check", "Login", *where)
    call_command("sso", "set", "Login", "--domain", "example.com", "--role-for", "a=owner", *where)
    call_command("sso", "list", "--json", *where)
    told = capsys.readouterr().out
    assert '"client_secret": "********"' in told
    owner = rest.as_role(acme, Role.OWNER)
    (found,) = owner.get("identity-providers").json["results"]
    assert (found["client_secret"], found["roles"]) == ("********", {"a": "owner"})
    path = f"identity-providers/{found['id']}"
    assert owner.post(f"{path}/check").json == {"keys": 1}
    assert owner.patch(path, {"client_secret": "********", "enabled": False}).status == 200
    assert Provider.objects.get().client_secret.open() == "x"
    assert owner.delete(path).status == 204
    call_command("sso", "add", "Login", *said, *where)
    call_command("sso", "remove", "Login", *where)
    assert not Provider.objects.exists()
