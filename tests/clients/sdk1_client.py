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
        begun = await session.initialize()
        tools = (await session.list_tools()).tools
        resources = (await session.list_resources()).resources
        prompts = (await session.list_prompts()).prompts
        progress = []

        async def told(done, total, message):
            progress.append(done)

        called = await session.call_tool(
            named(tools, "test_tool_with_progress").name, {}, progress_callback=told
        )
        resource = await session.read_resource(named(resources, "static-text").uri)
        prompt = await session.get_prompt(
            named(prompts, "test_prompt_with_arguments").name, {"arg1": "one", "arg2": "two"}
        )
        data = {
            "era": begun.protocolVersion,
            "tools": len(tools),
            "called": called.content[0].text,
            "progress": progress,
            "resource": resource.contents[0].text,
            "prompt": prompt.messages[0].content.text,
        }
        sys.stdout.write(f"{json.dumps(data)}\n")


async def main(*urls: str) -> None:
    for url in urls:
        await use(url)


def named(offered, name):
    return next(one for one in offered if one.name.endswith(name))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
