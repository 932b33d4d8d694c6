"""The documentation in the product: its pages, links, and the links of screens to it."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.admin import site

from bonobot.accounts.roles import Role
from bonobot.admin_pages import load_admin_pages
from bonobot.core.documentation import pages
from bonobot.core.documentation.learn_more import (
    LINKS,
    build_error_code_url,
    find_documentation,
)
from tests import admin_client, factories
from tests.screens import list_addresses

MARKDOWN_PAGES = sorted(name for name in pages.find_files() if not pages.is_image(name))
REFERENCE_PAGES = sorted(pages.GENERATED_PAGES)


def test_each_link_of_a_screen_leads_to_a_page_and_a_section() -> None:
    load_admin_pages()
    names = {name for name, _parameters in list_addresses(site.get_urls())}
    for start, link in LINKS.items():
        assert any(name == start or name.startswith(f"{start}_") for name in names), start
        page, _hash, anchor = link.partition("#")
        assert not anchor or anchor in pages.render_page(page).anchors, link
        assert page in pages.find_files(), link


def test_each_link_of_a_template_leads_to_a_section() -> None:
    links = set()
    for folder in settings.TEMPLATES[0]["DIRS"]:
        for path in Path(folder).rglob("*.html"):
            links |= {*re.findall(r'documentation_url "([^"]+)"', path.read_text())}
    assert "flow-labels#sources-of-labels" in links
    for link in links:
        page, _hash, anchor = link.partition("#")
        assert anchor in pages.render_page(page).anchors, link


def test_a_screen_has_the_link_with_the_longest_matching_name() -> None:
    assert find_documentation("agents_agent_policy_rows") == LINKS["agents_agent_policy"]
    assert find_documentation("agents_agent_metrics") == LINKS["agents_agent"]
    assert find_documentation("agents_agents") == ""


def test_every_link_and_image_within_the_documentation_exists() -> None:
    for name in (*MARKDOWN_PAGES, *REFERENCE_PAGES):
        html = pages.render_page(name).html
        for target in re.findall(r'(?:href|src|srcset)="/docs/([^"]*)"', html):
            page, _hash, anchor = target.partition("#")
            assert pages.is_page(page) or page in pages.find_files(), (name, target)
            if anchor:
                assert anchor in pages.render_page(page).anchors, (name, target)
        assert not re.findall(r'(?:href|src|srcset)="(?!https?:|mailto:|/docs/|")', html), name
        assert "<script" not in html, name


def test_diagrams_are_drawings_and_repeated_headings_have_their_own_anchors() -> None:
    page = pages.render_page("architecture")
    assert page.html.count('<figure class="bb-docs-diagram"><svg') == 5
    assert "language-mermaid" not in page.html
    changelog = pages.render_page("changelog")
    assert len(changelog.anchors) == len(changelog.headings)


def test_the_navigation_has_the_pages_of_the_site() -> None:
    sections = pages.load_navigation()
    assert [section.title for section in sections][:3] == ["Start", "Concepts", "How to"]
    listed = {name for section in sections for name in section.names}
    assert {"index", "approvals", "how-to/admin", "changelog", "roles"} <= listed
    assert listed <= {*MARKDOWN_PAGES, *REFERENCE_PAGES}
    assert set(REFERENCE_PAGES) <= listed


def test_each_page_that_the_first_page_links_to_exists() -> None:
    html = pages.render_page("index").html
    assert "<a>" not in html
    assert set(re.findall(r'href="/docs/(reference/[a-z]+)"', html)) == set(REFERENCE_PAGES)


def test_each_section_that_can_be_found_has_an_anchor_on_its_page() -> None:
    for name in (*MARKDOWN_PAGES, *REFERENCE_PAGES):
        anchors = {section.heading.anchor for section in pages.split_page(name)}
        assert anchors == pages.render_page(name).anchors, name


@pytest.mark.parametrize(
    ("query", "url"),
    [
        ("access requests", "/docs/approvals#access-requests"),
        ("BONOBOT_URL", "/docs/reference/settings#"),
        ("denied_by_policy", "/docs/reference/refusals#error-codes"),
        ("How do I add a server?", "/docs/start#3-add-your-own-server"),
        ("bonobot mcp add-operation", "/docs/reference/commands#bonobot-mcp-add-operation"),
    ],
)
def test_the_section_about_the_words_is_found_first(query: str, url: str) -> None:
    results = pages.search_pages(query)
    assert any(result.section.url.startswith(url) for result in results[:3])
    marked = re.findall("<mark>(.*?)</mark>", results[0].excerpt)
    assert marked
    assert all(text.lower() in query.lower() for text in marked)


def test_a_search_needs_all_words_and_treats_them_as_text() -> None:
    assert pages.search_pages("approvals zebracrossing") == []
    assert pages.search_pages("(.*)+[") == []
    assert pages.search_pages(" ` ") == []


def test_a_word_is_found_at_the_beginning_of_words_only() -> None:
    for result in pages.search_pages("rat"):
        section = result.section
        text = f"{section.text} {section.heading.title} {section.page_title}"
        assert re.search(r"(?<![^\W_])rat", text, re.I)
    assert not any("operate" in mark for mark in _list_marks("rat"))
    assert "approvals" in {mark.lower() + "s" for mark in _list_marks("approval")}


def _list_marks(query: str) -> list[str]:
    return [
        mark
        for result in pages.search_pages(query)
        for mark in re.findall("<mark>(.*?)</mark>", result.excerpt)
    ]


@pytest.mark.parametrize("query", ["policy", "approval", "budget", "audit"])
def test_sections_with_the_word_in_their_title_come_first(query: str) -> None:
    in_title = [
        re.search(rf"\b{query}", result.section.heading.title, re.I) is not None
        for result in pages.search_pages(query)
    ]
    assert in_title[0]
    assert in_title == sorted(in_title, reverse=True)


@pytest.mark.django_db
def test_results_link_to_sections() -> None:
    client = admin_client.sign_in(factories.create_organization(), Role.MEMBER)
    page = client.open("/docs/?q=access+requests")
    assert 'href="/docs/approvals#access-requests"' in page
    assert "No results" in client.open("/docs/?q=%3Cscript%3Ezebracrossing")
    assert "<script>zebra" not in client.open("/docs/?q=%3Cscript%3Ezebracrossing")


@pytest.mark.django_db
def test_signed_in_people_read_the_documentation() -> None:
    client = admin_client.sign_in(factories.create_organization(), Role.MEMBER)
    page = client.open("/docs/")
    assert "<title>Documentation" in page
    page = client.open("/docs/approvals")
    assert 'id="access-requests"' in page
    assert 'href="/docs/approvals" aria-current="page"' in page
    response = client.client.get("/docs/images/drawings/door.svg")
    assert (response.status_code, response["Content-Type"]) == (200, "image/svg+xml")
    page = client.get("agents_accessrequest_changelist")
    assert admin_client.find_links(page, "/docs/approvals#access-requests")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path",
    [
        "nothing",
        "making/site.py",
        "../manage.py",
        "..%2fmanage",
        "%2fetc%2fpasswd",
        "images",
        "index.md",
    ],
)
def test_other_files_cant_be_read(path: str) -> None:
    client = admin_client.sign_in(factories.create_organization(), Role.OWNER).client
    assert client.get(f"/docs/{path}").status_code == 404


@pytest.mark.django_db
def test_people_who_arent_signed_in_have_to_sign_in_first(client) -> None:
    response = client.get("/docs/approvals")
    assert response.status_code == 302
    assert "next=/docs/approvals" in response["Location"]


def test_the_row_of_an_error_code_has_an_anchor_that_pages_of_the_admin_link_to() -> None:
    html = pages.render_page("reference/refusals").html
    assert '<tr id="budget_exhausted">' in html
    assert build_error_code_url("budget_exhausted") == "/docs/reference/refusals#budget_exhausted"


def test_headers_of_tables_begin_with_capital_letters() -> None:
    assert "<th>Term</th>" in pages.render_page("concepts").html
    assert "<th>In <code>server.json</code></th>" in pages.render_page("importing").html
    assert "<th><code>--from</code></th>" in pages.render_page("importing").html
    assert "<th></th>" not in pages.render_page("approvals").html


@pytest.mark.django_db
def test_the_address_without_a_slash_leads_to_the_documentation() -> None:
    member = admin_client.sign_in(factories.create_organization(), Role.MEMBER)
    response = member.client.get("/docs")
    assert (response.status_code, response.headers["Location"]) == (302, "/docs/")
