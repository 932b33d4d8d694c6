"""Pasted JSON: previewed with every problem, added as it was ticked."""

import json
import re
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.utils import timezone
from django.utils.translation import override

from agents.admin import server_imports
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.i18n.localization import localize_text
from mcp_servers.import_export import import_drafts, import_plan
from mcp_servers.models import ImportDraft, Server
from mcp_servers.tasks import prune_health_history
from tests import admin_client, factories
from tests.agents.registry_server import build_entry

pytestmark = pytest.mark.django_db
TWO = {
    "mcpServers": {
        "weather": {"url": "https://mcp.example.com/mcp", "headers": {"X-Team": "geheim"}},
        "broken": {"url": "ftp://x"},
    }
}
SHARED = {
    "mcpServers": {
        "weather": {"url": "https://mcp.example.com/mcp", "allowed_tools": ["get_*", "set_*"]}
    },
    "bot_overrides": {
        "helper": {
            "additional_servers": ["weather"],
            "tool_permissions": {"weather": {"denied": ["set_*"]}},
        }
    },
}
LOCAL = {"local": {"url": "http://127.0.0.1:3001/mcp"}}


@pytest.fixture(autouse=True)
def _no_names_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    real = import_plan.resolve_for_preview
    monkeypatch.setattr(
        import_plan, "resolve_for_preview", lambda host: real(host) if host[:1].isdigit() else ()
    )


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def seat(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


def paste(seat: admin_client.AdminClient, config: Any, *, status: int = 200, **more: Any) -> str:
    text = config if isinstance(config, str) else json.dumps(config)
    return seat.post("mcp_servers_server_paste", status=status, text=text, **more)


def test_a_preview_shows_each_server_and_adds_none(seat: admin_client.AdminClient) -> None:
    page = paste(seat, TWO, do="preview")
    assert "1 selected" in admin_client.get_text(page)
    text = admin_client.get_text(page)
    assert text.count("Ready 1") == text.count("Can't be added 1") == 1
    assert "bad_url" in page
    assert "geheim" not in admin_client.get_text(page).replace(json.dumps(TWO), "")
    assert not Server.objects.exists()


def test_selected_servers_are_added_and_discovered(seat: admin_client.AdminClient) -> None:
    page = paste(seat, TWO, do="add", seen="1", add=["weather"])
    server = Server.objects.get()
    assert server.name == "weather"
    assert (
        f'data-connect="{admin_client.build_url("mcp_servers_server_connect", server.pk)}?' in page
    )


def test_servers_are_added_without_a_preview(seat: admin_client.AdminClient) -> None:
    page = paste(seat, TWO, do="add")
    assert [server.name for server in Server.objects.all()] == ["weather"]
    assert "data-connect" in page
    assert "bad_url" in page


def test_nothing_that_needs_a_decision_is_added_without_a_preview(acme: Organization) -> None:
    page = paste(admin_client.sign_in(acme, None), LOCAL, do="add")
    assert 'name="private" value="local"' in page
    assert not Server.objects.exists()
    # The preview says it: the state of the row, its checkbox, and the bar.
    text = admin_client.get_text(page)
    assert "Permission 1" in text
    assert "1 needs permission" in text
    assert "No servers were added." not in text
    assert "need a platform administrator's approval" not in text


def test_deselected_servers_are_skipped(seat: admin_client.AdminClient) -> None:
    page = paste(seat, TWO, do="add", seen="1")
    assert "No servers were added." in page
    assert not Server.objects.exists()


def test_a_server_that_cant_be_added_doesnt_stop_the_others(seat: admin_client.AdminClient) -> None:
    fields = {"text": json.dumps(TWO), "do": "add", "seen": "1", "add": ["weather", "broken"]}
    address = admin_client.build_url("mcp_servers_server_paste")
    result_address = seat.client.post(address, fields).headers["Location"]
    assert [server.name for server in Server.objects.all()] == ["weather"]
    for _reload in range(2):
        page = seat.open(result_address)
        text = admin_client.get_text(page)
        assert "1 server added. It is connecting. 1 wasn't added." in text
        assert "bad_url" in page
        assert "line 1 · url" in text
    Server.objects.update(discovered_at=timezone.now(), status="connected")
    text = admin_client.get_text(seat.open(result_address))
    assert "1 server added. 1 wasn't added." in text
    assert text.index("weather") < text.index("broken")


MANY = {
    "mcpServers": {
        "weather": {"url": "https://mcp.example.com/mcp", "headers": {"X-Team": "geheim"}},
        **{f"local-{n}": {"url": f"http://10.0.0.{n}/mcp"} for n in range(1, 6)},
    }
}
LOCAL_NAMES = [f"local-{n}" for n in range(1, 6)]


def connection_rows(model: Any) -> list[tuple[Any, ...]]:
    """Return the stored values of a table."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {model._meta.db_table}")  # noqa: S608
        return cursor.fetchall()


def find_draft_url(page: str) -> str:
    """Return the URL of the preview with the servers that are left to add."""
    return re.findall(r'href="([^"]*draft=[0-9a-f]+)"', page)[0]


def add_many(seat: admin_client.AdminClient) -> str:
    """Add all of `MANY`; return the page with the results."""
    address = admin_client.build_url("mcp_servers_server_paste")
    fields = {"text": json.dumps(MANY), "do": "add", "seen": "1", "add": ["weather", *LOCAL_NAMES]}
    return seat.open(seat.client.post(address, fields).headers["Location"])


def test_servers_with_private_addresses_are_one_result_with_one_permission(
    acme: Organization,
) -> None:
    root = admin_client.sign_in(acme, None)
    page = add_many(root)
    text = admin_client.get_text(page)
    assert "5 need permission for private addresses." in text
    assert text.count("Not added") == 1
    (address,) = re.findall(r'href="([^"]*allow=1)"', page)
    preview = root.open(address.replace("&amp;", "&"))
    assert "weather" not in re.findall(r'data-entry="([^"]*)"', preview)
    assert len(re.findall(r'name="private"\s+value="local-\d"\s+checked', preview)) == 5
    assert "Add 5 servers" in admin_client.get_text(preview)
    assert Server.objects.count() == 1  # nothing is added by opening a page
    names: dict[str, Any] = {"add": LOCAL_NAMES, "private": LOCAL_NAMES}
    paste(root, MANY, do="add", seen="1", **names)
    assert Server.objects.filter(allow_private=True).count() == 5


def test_the_text_of_failed_servers_is_stored_encrypted_and_offers_no_permission_to_operators(
    seat: admin_client.AdminClient,
) -> None:
    page = add_many(seat)
    assert "5 need permission for private addresses." in admin_client.get_text(page)
    assert "allow=1" not in page
    assert "geheim" not in json.dumps(dict(seat.client.session))
    assert "geheim" not in repr(list(connection_rows(ImportDraft)))
    address = find_draft_url(page)
    preview = seat.open(f"{address}&allow=1")
    assert 'name="private"' not in preview
    assert "need a platform administrator" in preview


def test_the_preview_names_the_transport(seat: admin_client.AdminClient) -> None:
    servers = {"docs": {"url": "https://mcp.example.com/mcp"}, "clock": {"command": "date"}}
    text = admin_client.get_text(paste(seat, {"mcpServers": servers}, do="preview"))
    assert "HTTP · line 1" in text
    assert "stdio · line 1" in text


def test_invalid_json_is_reported_with_its_position(seat: admin_client.AdminClient) -> None:
    page = paste(seat, '{"a": {"url": "https://x.example/"\n', do="preview")
    assert "broken_json" in page
    assert "line" in page


def test_the_button_says_how_many_servers_will_be_added_when_others_need_something(
    seat: admin_client.AdminClient,
) -> None:
    url = "https://mcp.example.com/mcp"
    keyed = {"url": url, "headers": {"X-Key": "${SKY_KEY}"}}
    config = {"ready": {"url": url}, "weather": keyed, "rain": keyed, **LOCAL}
    text = admin_client.get_text(paste(seat, config, do="preview"))
    assert "1 selected 2 need values 1 needs permission" in text
    assert "Add 1 server" in text
    filled = {"parameter-SKY_KEY": "geheim"}
    text = admin_client.get_text(paste(seat, config, do="preview", **filled))
    assert "3 selected 1 needs permission" in text
    assert "Add 3 servers" in text


def test_a_server_whose_name_is_taken_is_added_under_another_name(
    acme: Organization, seat: admin_client.AdminClient
) -> None:
    factories.create_http_server(acme, "https://old.example.com/mcp", "weather")
    page = paste(seat, TWO, do="preview")
    assert 'name="name-weather"' in page
    fields = {"do": "add", "seen": "1", "add": ["weather"]}
    page = paste(seat, TWO, **fields, **{"name-weather": "Weather"})
    assert "No servers were added." in page
    assert 'value="Weather"' in page
    page = paste(seat, TWO, do="preview", seen="1", add=["weather"], **{"name-weather": "sun"})
    assert "Add 1 server" in admin_client.get_text(page)
    assert 'value="sun"' in page
    paste(seat, TWO, **fields, **{"name-weather": "sun"})
    assert {server.name for server in Server.objects.all()} == {"weather", "sun"}


def test_a_platform_administrator_can_allow_a_private_address(acme: Organization) -> None:
    root = admin_client.sign_in(acme, None)
    assert 'name="private" value="local"' in paste(root, LOCAL, do="preview")
    paste(root, LOCAL, do="add", seen="1", add=["local"])
    assert not Server.objects.exists()
    paste(root, LOCAL, do="add", seen="1", add=["local"], private=["local"])
    assert Server.objects.get().allow_private


def test_an_operator_cant_allow_a_private_address(seat: admin_client.AdminClient) -> None:
    page = paste(seat, LOCAL, do="preview")
    assert 'name="private"' not in page
    assert "Ask a platform administrator" in page
    paste(seat, LOCAL, do="add", seen="1", add=["local"], private=["local"])
    assert not Server.objects.exists()


def test_a_command_is_refused_for_an_operator(seat: admin_client.AdminClient) -> None:
    page = paste(seat, {"clock": {"command": "uvx", "args": ["mcp-server-time"]}}, do="preview")
    assert "platform_admin_only" in page


def test_variables_become_form_fields(seat: admin_client.AdminClient) -> None:
    config = {"weather": {"url": "https://mcp.example.com/mcp", "headers": {"X-Key": "${SKY_KEY}"}}}
    page = paste(seat, config, do="preview")
    assert 'name="parameter-SKY_KEY"' in page
    paste(seat, config, do="add", seen="1", add=["weather"], **{"parameter-SKY_KEY": "geheim"})
    [secret] = Server.objects.get().secrets.all()
    assert secret.value.open() == "geheim"


def test_each_row_has_a_state_and_the_fields_that_it_needs(seat: admin_client.AdminClient) -> None:
    headers = {"X-Key": "${SKY_KEY}"}
    config = {
        "ready": {"url": "https://a.example.com/mcp"},
        "first": {"url": "https://b.example.com/mcp", "headers": headers},
        "second": {"url": "https://c.example.com/mcp", "headers": headers},
        **LOCAL,
        "clock": {"command": "uvx", "args": ["mcp-server-time"]},
    }
    page = paste(seat, config, do="preview")
    states = dict(re.findall(r'data-entry="(\w+)" data-state="(\w+)"', page))
    assert states == {
        "ready": "ready",
        "first": "credential",
        "second": "credential",
        "local": "permission",
        "clock": "refused",
    }
    assert page.count('name="parameter-SKY_KEY"') == 1
    assert "SKY_KEY of first" in admin_client.get_text(page)
    page = paste(seat, config, do="preview", **{"parameter-SKY_KEY": "geheim"})
    assert page.count('data-state="ready"') == 3


def test_an_entry_without_command_and_url_says_so(seat: admin_client.AdminClient) -> None:
    page = paste(seat, {"mcpServers": {"empty": {"args": ["--help"]}}}, do="preview")
    assert "<code></code>" not in page
    assert 'class="bb-error-code"' in page
    assert '<summary title="">No command or URL</summary>' in page
    with override("de"):
        assert (
            localize_text("It has neither `url` nor `command`.")
            == "Es fehlen sowohl `url` als auch `command`."
        )


def test_a_server_with_a_name_that_exists_says_so(
    acme: Organization, seat: admin_client.AdminClient
) -> None:
    admin_client.create_web_server(acme, "Same")
    other = admin_client.create_web_server(acme, "Other")
    url = Server.objects.get(name="Same").endpoint_config["url"]
    config = {
        "Same": {"url": url},
        "Other": {"url": "https://mcp.example.com/mcp"},
        "0ther": {"url": "https://mcp.example.com/mcp"},  # looks like a name that exists
        "weather": {"url": "https://mcp.example.com/mcp"},
    }
    page = paste(seat, config, do="preview")
    states = dict(re.findall(r'data-entry="(\w+)" data-state="(\w+)"', page))
    assert states == {"Same": "exists", "Other": "exists", "0ther": "refused", "weather": "ready"}
    text = admin_client.get_text(page)
    assert "Exists already 2" in text
    assert "Same exists with the same URL. There is nothing to add." in text
    reason = f"exists with another URL: {other.endpoint_config['url']} ."
    assert f"Other {reason} To add both, enter another name." in text


def test_a_command_that_differs_from_that_of_an_existing_server_is_named(
    acme: Organization, seat: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme, "clock")
    command = {"command": "uvx", "args": ["mcp-server-time"]}
    Server.objects.filter(pk=server.pk).update(transport_type="stdio", endpoint_config=command)
    config = {"clock": {"command": "npx", "args": ["clock"]}}
    text = admin_client.get_text(paste(seat, config, do="preview"))
    assert "clock exists with another command: uvx mcp-server-time . To add both" in text
    text = admin_client.get_text(paste(seat, {"clock": command}, do="preview"))
    assert "clock exists with the same command. There is nothing to add." in text


def test_the_result_accounts_for_each_pasted_server(
    acme: Organization, seat: admin_client.AdminClient
) -> None:
    admin_client.create_web_server(acme, "docs")
    config: dict[str, Any] = {
        "docs": {"url": "https://docs.example.com/mcp"},
        "clock": {"command": "uvx", "args": ["mcp-server-time"]},  # needs an administrator
        "skipped": {"url": "https://skipped.example.com/mcp"},
        **{f"web{n}": {"url": f"https://web{n}.example.com/mcp"} for n in range(3)},
        **{
            f"key{n}": {
                "url": f"https://key{n}.example.com/mcp",
                "headers": {"X-Key": f"${{KEY_{n}}}"},
            }
            for n in range(4)
        },
    }
    names = [name for name in config if name not in {"docs", "clock", "skipped"}]
    fields = {"text": json.dumps({"mcpServers": config}), "do": "add", "seen": "1", "add": names}
    url = admin_client.build_url("mcp_servers_server_paste")
    result_url = seat.client.post(url, fields).headers["Location"]
    Server.objects.update(discovered_at=timezone.now(), status="connected")
    page = seat.open(result_url)
    text = admin_client.get_text(page)
    assert "3 servers added. 5 weren't added. 1 exists already. 1 wasn't selected." in text
    assert "4 need values, such as tokens." in text
    assert text.count("Not added") == 2  # the values, and the command
    assert "Not selected 1 skipped" in text
    assert "`" not in text
    assert "Add 6 remaining" in text
    preview = seat.open(find_draft_url(page))
    assert set(re.findall(r'data-entry="([^"]*)"', preview)) == {
        *(f"key{n}" for n in range(4)),
        "clock",
        "skipped",
    }


def test_servers_that_could_not_be_selected_are_in_the_result_and_can_be_continued(
    acme: Organization, seat: admin_client.AdminClient
) -> None:
    url = "https://mcp.example.com/mcp"
    config = {
        "ready": {"url": url},
        "key": {"url": url, "headers": {"X-Key": "${KEY}"}},
        "other": {"url": url, "headers": {"X-Key": "${OTHER_KEY}"}},
    }
    page = paste(seat, config, do="add", seen="1", add=["ready"])  # the boxes of others are off
    text = admin_client.get_text(page)
    assert "1 server added. It is connecting. 2 weren't added." in text
    assert "2 need values, such as tokens." in text
    draft_url = find_draft_url(page)
    preview = seat.open(draft_url)
    assert re.findall(r'data-entry="([^"]*)"', preview) == ["key", "other"]
    fields = {"text": json.dumps(config), "do": "add", "seen": "1", "add": ["key"]}
    page = seat.send(draft_url, fields | {"parameter-KEY": "geheim"})
    assert "1 server added. It is connecting. 1 wasn't added." in admin_client.get_text(page)
    assert find_draft_url(page) == draft_url
    fields["add"] = ["other"]
    page = seat.send(draft_url, fields | {"parameter-OTHER_KEY": "geheim"})
    assert "draft=" not in page
    assert Server.objects.count() == 3
    assert not ImportDraft.objects.exists()
    page = seat.open(draft_url)
    assert "paste them again" in page
    assert 'data-entry="' not in page


def test_the_preview_is_a_page_that_can_be_reloaded(seat: admin_client.AdminClient) -> None:
    config = {"weather": {"url": "https://mcp.example.com/mcp", "headers": {"X-Key": "${SKY_KEY}"}}}
    url = admin_client.build_url("mcp_servers_server_paste")
    fields = {"text": json.dumps(config), "do": "preview", "parameter-SKY_KEY": "geheim"}
    response = seat.client.post(url, fields)
    assert response.status_code == 302
    preview_url = response.headers["Location"]
    assert "geheim" not in preview_url
    for _reload in range(2):
        page = seat.open(preview_url)
        assert "Add 1 server" in admin_client.get_text(page)
        assert 'value="geheim"' in page
    assert not Server.objects.exists()
    assert "geheim" not in repr(connection_rows(ImportDraft))
    again = fields | {"seen": "1", "parameter-SKY_KEY": ""}
    assert seat.client.post(preview_url, again).headers["Location"] == preview_url
    assert "1 needs values" in admin_client.get_text(seat.open(preview_url))
    assert ImportDraft.objects.count() == 1


def test_a_preview_doesnt_contain_the_credentials_of_its_text(
    seat: admin_client.AdminClient,
) -> None:
    page = paste(seat, TWO, do="preview")
    assert "geheim" not in page
    draft = ImportDraft.objects.get()
    url = f"{admin_client.build_url('mcp_servers_server_paste')}?draft={draft.pk.hex}"
    posted = {"text": "", "do": "add", "seen": "1", "add": ["weather"]}
    assert seat.client.post(url, posted).status_code == 302
    assert Server.objects.get().name == "weather"


def test_a_text_with_an_error_is_a_page_that_can_be_reloaded(
    seat: admin_client.AdminClient,
) -> None:
    url = admin_client.build_url("mcp_servers_server_paste")
    fields = {"text": '{"a": {"url": "https://x.example/"', "do": "add"}
    page_url = seat.client.post(url, fields).headers["Location"]
    assert "broken_json" in seat.open(page_url)
    assert 'role="alert"' in paste(seat, "", status=400, do="add")
    assert seat.client.post(page_url, fields | {"text": json.dumps(TWO)}).status_code == 302
    assert Server.objects.count() == 1


def test_a_draft_is_opened_only_by_its_person_in_its_organization_until_it_expires(
    acme: Organization, seat: admin_client.AdminClient
) -> None:
    url = admin_client.build_url("mcp_servers_server_paste")
    fields = {"text": json.dumps(TWO), "do": "preview"}
    preview_url = seat.client.post(url, fields).headers["Location"]
    assert 'data-entry="weather"' in seat.open(preview_url)
    colleague = admin_client.sign_in(acme, Role.OPERATOR, "colleague")
    stranger = admin_client.sign_in(factories.create_organization("globex"), Role.OPERATOR)
    for other in (colleague, stranger):
        page = other.open(preview_url)
        assert 'data-entry="' not in page
        assert "geheim" not in page
    assert "paste them again" in seat.open(f"{url}?draft=nonsense")
    ImportDraft.objects.update(updated_at=timezone.now() - import_drafts.LIFETIME)
    assert 'data-entry="' not in seat.open(preview_url)
    prune_health_history()
    assert not ImportDraft.objects.exists()


def test_a_person_has_only_the_latest_drafts(seat: admin_client.AdminClient) -> None:
    for n in range(import_drafts.MAX_DRAFTS + 2):
        paste(seat, {f"web{n}": {"url": "https://mcp.example.com/mcp"}}, do="preview")
    assert ImportDraft.objects.count() == import_drafts.MAX_DRAFTS


def test_another_text_in_a_preview_has_all_its_servers(seat: admin_client.AdminClient) -> None:
    page = paste(seat, TWO, do="add")
    draft_url = find_draft_url(page)
    more = {**TWO["mcpServers"], "news": {"url": "https://news.example.com/mcp"}}
    preview = seat.send(draft_url, {"text": json.dumps(more), "do": "preview"})
    assert re.findall(r'data-entry="([^"]*)"', preview) == ["weather", "broken", "news"]


def test_added_servers_with_the_same_problem_are_one_row(
    acme: Organization, seat: admin_client.AdminClient
) -> None:
    config = {f"web{n}": {"url": f"https://web{n}.example.com/mcp"} for n in range(6)}
    fields = {"text": json.dumps({"mcpServers": config}), "do": "add"}
    url = admin_client.build_url("mcp_servers_server_paste")
    result_url = seat.client.post(url, fields).headers["Location"]
    away = {"status": "error", "status_code": "server_unreachable", "status_detail": "No answer."}
    Server.objects.update(**away)
    Server.objects.filter(name="web3").update(status_code="server_installing")
    text = admin_client.get_text(seat.open(result_url))
    assert "6 servers added. 1 is being installed. 5 couldn't connect." in text
    assert "5 servers web0, web1, web2, and 2 more" in text
    assert text.count("Failed They can't be reached.") == 1
    assert text.count("Failed") == 1
    assert "Installing No answer." in text


def test_crashed_servers_are_one_row_only_with_the_same_error(
    acme: Organization, seat: admin_client.AdminClient
) -> None:
    config = {f"web{n}": {"url": f"https://web{n}.example.com/mcp"} for n in range(3)}
    fields = {"text": json.dumps({"mcpServers": config}), "do": "add"}
    url = admin_client.build_url("mcp_servers_server_paste")
    result_url = seat.client.post(url, fields).headers["Location"]
    for name, reason in (("web0", "no module"), ("web1", "no module"), ("web2", "no repository")):
        detail = f"`{name}` ended: {reason}."
        row = {"status": "error", "status_code": "server_crashed", "status_detail": detail}
        Server.objects.filter(name=name).update(**row)
    page = seat.open(result_url)
    text = admin_client.get_text(page)
    assert "2 servers web0, web1 cancel Failed They report the same error." in text
    assert "ended: no repository." in text
    assert not re.search('class="bb-strong">[^<]*no repository', page)


def test_servers_that_couldnt_be_installed_show_the_real_reason(
    acme: Organization, seat: admin_client.AdminClient
) -> None:
    config = {f"web{n}": {"url": f"https://web{n}.example.com/mcp"} for n in range(2)}
    fields = {"text": json.dumps({"mcpServers": config}), "do": "add"}
    url = admin_client.build_url("mcp_servers_server_paste")
    result_url = seat.client.post(url, fields).headers["Location"]
    for name in config:
        detail = f"`{name}` couldn't be installed: a connection was denied: Not on the allowlist."
        row = {"status_code": "installation_failed", "status_detail": detail}
        Server.objects.filter(name=name).update(status="error", **row)
    page = seat.open(result_url)
    text = admin_client.get_text(page.partition("<details>")[0])
    assert "2 servers web0, web1 cancel Failed Their packages couldn't be installed." in text
    assert "a connection was denied: Not on the allowlist." in text
    assert "Check the package names" not in page


def test_a_missing_variable_is_reported(seat: admin_client.AdminClient) -> None:
    config = {"weather": {"url": "https://mcp.example.com/${PLACE}"}}
    page = paste(seat, config, do="add", seen="1", add=["weather"])
    assert "PLACE" in admin_client.get_text(page)
    assert not Server.objects.exists()


def test_a_reviewer_cant_import(acme: Organization) -> None:
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    reviewer.get("mcp_servers_server_paste", status=403)
    paste(reviewer, TWO, do="add", seen="1", add=["weather"], status=403)
    assert not Server.objects.exists()


def test_attachments_in_the_file_are_previewed_and_applied(
    acme: Organization, seat: admin_client.AdminClient
) -> None:
    helper = factories.create_agent(acme)
    page = paste(seat, SHARED, do="preview")
    assert "Agent tools" in page
    assert not helper.agent_servers.exists()
    paste(seat, SHARED, do="add", seen="1", add=["weather"], overrides="1")
    agent_server = helper.agent_servers.get()
    assert (agent_server.server.name, agent_server.denied_tools) == ("weather", ["set_*"])
    assert agent_server.server.only_tools == ["get_*", "set_*"]


def test_attachments_are_applied_without_a_preview(
    acme: Organization, seat: admin_client.AdminClient
) -> None:
    helper = factories.create_agent(acme)
    page = paste(seat, SHARED, do="add")
    assert helper.agent_servers.get().denied_tools == ["set_*"]
    assert "weather was attached to helper." in page


def test_deselected_attachments_arent_applied(
    acme: Organization, seat: admin_client.AdminClient
) -> None:
    helper = factories.create_agent(acme)
    paste(seat, SHARED, do="add", seen="1", add=["weather"])
    assert Server.objects.exists()
    assert not helper.agent_servers.exists()


def test_an_uploaded_file_is_read_like_pasted_text(seat: admin_client.AdminClient) -> None:
    file = SimpleUploadedFile("mcp.json", json.dumps(TWO).encode())
    page = seat.post("mcp_servers_server_paste", text="", file=file, do="preview")
    assert "1 selected" in admin_client.get_text(page)
    odd = SimpleUploadedFile("mcp.bin", b"\xff\xfe\x00")
    assert "not_text" in seat.post("mcp_servers_server_paste", status=400, text="", file=odd)


def test_servers_of_a_registry_are_shown_before_they_are_added(
    seat: admin_client.AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = paste(seat, "", status=400, registry="http://127.0.0.1:1", search="x", do="add")
    kept = paste(seat, '{"mcpServers": {}}', status=400, registry="http://127.0.0.1:1", do="add")
    assert "mcpServers" in kept
    assert 'value="http://127.0.0.1:1"' in refused
    text = json.dumps({"servers": [build_entry("io.example/weather")]})
    monkeypatch.setattr(server_imports, "fetch_registry", lambda *_, **__: text)
    page = paste(seat, "", registry="https://registry.example.com", do="add")
    assert "parameter-WEATHER_X_TOKEN" in page
    assert not Server.objects.exists()


def test_sections_that_arent_servers_are_named_once(seat: admin_client.AdminClient) -> None:
    config = {
        "servers": {
            "weather": {"url": "https://mcp.example.com/mcp"},
            "news": {"url": "https://news.example.com/mcp", "color": "red"},
        },
        "skills": {"greet": {"text": "Hello"}},
    }
    page = admin_client.get_text(paste(seat, config, do="preview"))
    assert page.count("Ignored entries outside the servers: skills .") == 1
    assert page.count("To load skills as well, use bonobot mcp apply FILE .") == 1
    assert page.count("Ignored: color .") == 1
