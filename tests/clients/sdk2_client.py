"""A client on the second Python SDK: `sdk2_client.py MODES URL...`, the token in `TOKEN`.

`MODES` are separated by commas: auto, legacy or a revision. It prints a line for each mode and URL.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def use(url: str, mode: Any) -> None:
    """Use the tools, a resource and a prompt of a URL."""
    headers = {"Authorization": f"Bearer {os.environ['TOKEN']}"}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        tools = (await client.list_tools()).tools
        resources = (await client.list_resources()).resources
        prompts = (await client.list_prompts()).prompts
        progress: list[float] = []

        async def record_progress(done: float, total: float | None, message: str | None) -> None:
            progress.append(done)

        call_result: Any = await client.call_tool(
            find_by_name(tools, "test_tool_with_progress").name,
            {},
            progress_callback=record_progress,
        )
        resource: Any = await client.read_resource(find_by_name(resources, "static-text").uri)
        prompt: Any = await client.get_prompt(
            find_by_name(prompts, "test_prompt_with_arguments").name, {"arg1": "one", "arg2": "two"}
        )
        data = {
            "era": client.protocol_version,
            "tools": len(tools),
            "called": call_result.content[0].text,
            "progress": progress,
            "resource": resource.contents[0].text,
            "prompt": prompt.messages[0].content.text,
        }
        sys.stdout.write(f"{json.dumps(data)}\n")


async def main(modes: str, *urls: str) -> None:
    """Use all URLs in all modes."""
    for mode in modes.split(","):
        for url in urls:
            await use(url, mode)


def find_by_name(items: Sequence[Any], name: str) -> Any:
    """Return the item with a name, with or without a namespace."""
    return next(item for item in items if item.name.endswith(name))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
