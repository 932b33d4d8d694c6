"""A client on fastmcp: `fastmcp_client.py MODES URL...`, the token in `TOKEN`.

`MODES` are separated by commas: auto, legacy or a revision. It prints a line for each mode and URL.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from fastmcp import Client
from fastmcp.skills import SkillsClientExtension


async def use(url: str, mode: Any) -> None:
    """Use the tools, a resource, a template and a prompt of `tests/servers/fastmcp_server.py`."""
    progress: list[float] = []

    async def record_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async def name_reader(message: str, response_type: Any, *rest: Any) -> Any:
        return response_type(value="Ada")

    async with Client(
        url,
        auth=os.environ["TOKEN"],
        mode=mode,
        elicitation_handler=name_reader,
        extensions=[SkillsClientExtension()],
    ) as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        book = await client.call_tool(find_name(tools, "find_book"), {"title": "Emma"})
        count = await client.call_tool(
            find_name(tools, "count_books"), {"shelves": 3}, progress_handler=record_progress
        )
        loan = await client.call_tool(
            find_name(tools, "lend_book"), {"title": "Emma"}, raise_on_error=False
        )
        resources = [str(resource.uri) for resource in await client.list_resources()]
        templates = [item.uri_template for item in await client.list_resource_templates()]
        hours: Any = await client.read_resource(find_name(resources, "hours"))
        shelf: Any = await client.read_resource(
            find_name(templates, "{number}").replace("{number}", "7")
        )
        prompts = [prompt.name for prompt in await client.list_prompts()]
        prompt: Any = await client.get_prompt(find_name(prompts, "review_book"), {"title": "Emma"})
        data = {
            "era": client.protocol_version,
            "tools": len(tools),
            "book": book.structured_content,
            "count": count.content[0].text,
            "progress": progress,
            "loan": loan.content[0].text,
            "hours": hours[0].text,
            "shelf": shelf[0].text,
            "prompt": prompt.messages[0].content.text,
            "skills": await read_skills(client) if mode == "auto" else {},
        }
    sys.stdout.write(f"{json.dumps(data)}\n")


async def read_skills(client: Any) -> dict[str, dict[str, str]]:
    """Return the files of each skill by its name; fastmcp compares each one with its digest.

    fastmcp supports skills in the modern protocol, when it has asked for the capabilities.
    """
    skills = [await client.read_skill(skill.uri) for skill in await client.list_skills()]
    return {
        skill.name: {path: text.decode() for path, text in skill.files.items()} for skill in skills
    }


async def main(modes: str, *urls: str) -> None:
    """Use all URLs in all modes."""
    for mode in modes.split(","):
        for url in urls:
            await use(url, mode)


def find_name(names: Sequence[str] | dict[str, Any], end: str) -> str:
    """Return the name or URI that ends with `end`: the gateway adds the server in front of it."""
    return next(name for name in names if name.endswith(end))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
