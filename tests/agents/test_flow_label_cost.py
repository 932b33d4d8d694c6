"""How many approvals ordinary work needs, with and without labels of stores.

All tasks use the same servers and run one after another in separate sessions, so a task reads what
earlier ones wrote. `-s` prints the table of docs/flow-labels.md.
"""

import sys
from collections.abc import Iterator

import pytest

from agents.models import Agent
from bonobot.accounts.models import Organization
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import set_labels
from mcp_servers.models import Server
from tests import admin_client
from tests.agents.labeled_stores import APPROVAL_REQUIRED, BOTH, World, create_world, declare_tool

pytestmark = pytest.mark.django_db(transaction=True)

TEXT = {"type": "string"}
PRIVATE, UNTRUSTED, SENDS = FlowLabel.PRIVATE_DATA, FlowLabel.UNTRUSTED_CONTENT, FlowLabel.SENDS_OUT
# Servers as they are commonly used, with the labels that their presets or a reviewer give them.
SERVERS: dict[str, dict[str, tuple[FlowLabel, ...]]] = {
    "files": {"read_file": (PRIVATE,), "write_file": (), "list_directory": (PRIVATE,)},
    "git": {"git_log": (PRIVATE,), "git_diff": (PRIVATE,), "git_commit": (), "git_push": (SENDS,)},
    "memory": {"create_entities": (), "add_observations": (), "search_nodes": (PRIVATE,)},
    "database": {"read_query": (PRIVATE,), "write_query": ()},
    "web": {"search_web": (UNTRUSTED,), "fetch_page": (UNTRUSTED,)},
    "mail": {"read_email": BOTH, "create_draft": (), "send_email": (SENDS,)},
    "chat": {"list_channels": (PRIVATE,), "get_history": BOTH, "post_message": (SENDS,)},
    "tickets": {"get_issue": BOTH, "create_issue": (SENDS,), "add_comment": (SENDS,)},
    "calendar": {"list_events": (PRIVATE,), "create_event": ()},
    "clock": {"get_current_time": ()},
}
# Descriptions of tools whose names say too little.
DESCRIPTIONS = {"git_log": "Shows the commit logs", "git_diff": "Shows differences"}
# Ordinary tasks of a week, in order, and their calls.
TASKS: tuple[tuple[str, str], ...] = (
    ("read a file and answer", "files.read_file"),
    ("look a directory through, write a report", "files.list_directory files.write_file"),
    ("read a file, post its summary", "files.read_file chat.post_message"),
    ("commit code", "git.git_diff git.git_commit"),
    ("commit and push code", "git.git_diff git.git_commit git.git_push"),
    ("search the web and answer", "web.search_web web.fetch_page"),
    ("search the web, post what was found", "web.search_web web.fetch_page chat.post_message"),
    ("add a fact to the memory", "memory.create_entities"),
    ("add facts of a file to the memory", "files.read_file memory.add_observations"),
    ("look a fact up", "memory.search_nodes"),
    ("look a fact up and post it", "memory.search_nodes chat.post_message"),
    ("query the database, post a figure", "database.read_query chat.post_message"),
    ("query the database, store a sum", "database.read_query database.write_query"),
    ("tell the time", "clock.get_current_time"),
    ("plan an appointment", "calendar.list_events clock.get_current_time calendar.create_event"),
    ("announce the appointments", "calendar.list_events chat.post_message"),
    ("open a ticket about the code", "git.git_log tickets.create_issue"),
    ("read a ticket, look at the code", "tickets.get_issue git.git_log"),
    ("read mail and answer", "mail.read_email"),
    ("summarize a page into the memory", "web.fetch_page memory.add_observations"),
    ("later read what was kept of it", "memory.search_nodes"),
    ("draft a reply to a mail", "mail.read_email mail.create_draft"),
    ("reply to a mail", "mail.read_email mail.send_email"),
    ("keep a mail's facts in the memory", "mail.read_email memory.add_observations"),
    ("look a fact up and post it, later", "memory.search_nodes chat.post_message"),
    ("read a file, post its summary, later", "files.read_file chat.post_message"),
    ("post a message", "chat.post_message"),
    ("search the web, post, later", "web.search_web chat.post_message"),
)


@pytest.fixture
def world(acme: Organization, helper: Agent) -> Iterator[World]:
    Agent.objects.filter(pk=helper.pk).update(calls_per_minute=100_000)
    with create_world(acme, helper) as new_world:
        yield new_world


def create_servers(world: World) -> dict[str, Server]:
    """Create the servers and label their tools."""
    servers = {}
    for name, tools in SERVERS.items():
        server = servers[name] = admin_client.create_web_server(world.acme, name)
        for tool in tools:
            declare_tool(server, tool, {"text": TEXT, "description": DESCRIPTIONS.get(tool, "")})
        approve_definitions(world.administrator, server)
        for tool, labels in tools.items():
            set_labels(world.administrator, server, [*server.definitions.filter(name=tool)], labels)
        world.attach_store(server, world.helper)
    return servers


def count_approvals(world: World) -> list[int]:
    """Run the tasks; return how many approvals each needs."""
    counts = []
    for _task, calls in TASKS:
        session = world.start_session()
        codes = [session.use(f"mcp_{call.replace('.', '_', 1)}", {}) for call in calls.split()]
        assert {*codes} <= {"", APPROVAL_REQUIRED}, (calls, codes)
        counts.append(codes.count(APPROVAL_REQUIRED))
    return counts


def test_ordinary_work_needs_few_additional_approvals(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_servers(world)
    with monkeypatch.context() as patch:
        patch.setattr("agents.calls.admit.list_used_stores", lambda *_: ())
        before = count_approvals(world)
    after, later = count_approvals(world), count_approvals(world)
    lines = ["| task | before | after | a week later |", "|---|---|---|---|"]
    for (task, _calls), *counts in zip(TASKS, before, after, later, strict=True):
        lines.append(f"| {task} | {' | '.join(map(str, counts))} |")
    sums = " | ".join(f"**{sum(column)}**" for column in (before, after, later))
    sys.stdout.write("\n".join(("", *lines, f"| **{len(TASKS)} tasks** | {sums} |", "")))
    assert sum(before) == 1
    # Posting facts that came from a mail and were stored in the memory must need approval.
    assert list_tasks_with_more(before, after) == ["look a fact up and post it, later"]
    assert list_tasks_with_more(before, later) == [
        "look a fact up and post it",
        *list_tasks_with_more(before, after),
    ]


def list_tasks_with_more(before: list[int], after: list[int]) -> list[str]:
    """Return the tasks that need more approvals than before."""
    return [task for (task, _), a, b in zip(TASKS, before, after, strict=True) if b > a]
