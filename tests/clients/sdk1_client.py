"""A client on the first Python SDK: `sdk1_client.py URL...`, the token in `TOKEN`."""

import asyncio
import json
import os
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client


async def use(url: str) -> None:
    headers = {"Authorization": f"Bearer {os.environ['TOKEN']}"}
    async with (
        streamablehttp_client(url, headers=headers) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        initialized = await session.initialize()
        tools = (await session.list_tools()).tools
        resources = (await session.list_resources()).resources
        prompts = (await session.list_prompts()).prompts
        progress = []

        async def record_progress(done, total, message):
            progress.append(done)

        call_result = await session.call_tool(
            find_by_name(tools, "test_tool_with_progress").name,
            {},
            progress_callback=record_progress,
        )
        resource = await session.read_resource(find_by_name(resources, "static-text").uri)
        prompt = await session.get_prompt(
            find_by_name(prompts, "test_prompt_with_arguments").name, {"arg1": "one", "arg2": "two"}
        )
        data = {
            "era": initialized.protocolVersion,
            "tools": len(tools),
            "called": call_result.content[0].text,
            "progress": progress,
            "resource": resource.contents[0].text,
            "prompt": prompt.messages[0].content.text,
        }
        sys.stdout.write(f"{json.dumps(data)}\n")


async def main(*urls: str) -> None:
    for url in urls:
        await use(url)


def find_by_name(items, name):
    return next(item for item in items if item.name.endswith(name))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
