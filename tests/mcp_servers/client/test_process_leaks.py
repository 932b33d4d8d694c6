"""Nothing remains of stdio servers that leave processes behind (`make bench` opens a thousand)."""

import pytest

from mcp_servers.client.child_process import choose_containment
from tests.mcp_servers.client.process_leaks import open_many


async def test_no_process_zombie_or_descriptor_is_left():
    if choose_containment().name != "namespace":
        pytest.skip("needs process namespaces, which this machine doesn't allow")
    report = await open_many(12, workers=1)
    assert report.seen > 5
    assert (report.processes, report.zombies) == (0, 0)
    assert abs(report.descriptors) <= 5
