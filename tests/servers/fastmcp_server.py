"""A server on fastmcp, both eras: `fastmcp_server.py stdio` or `http`.

Over HTTP it serves `/mcp` on the loopback and prints `PORT <number>` once it listens. It runs in
the environment that `tests/clients/install` creates for fastmcp.
"""

import asyncio
import socket
import sys
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastmcp import Context, FastMCP
from fastmcp.skills import Skill
from fastmcp.skills.provider import SkillCatalogProvider

server = FastMCP("library", instructions="Look up books with `find_book`.")
catalog_books = Skill(
    name="catalog-books",
    description="Adds books to the catalog.",
    instructions="Use the form for each book.",
    files={"form.md": "Title, author, year"},
)
server.add_provider(SkillCatalogProvider([catalog_books]))


@dataclass
class Book:
    """What `find_book` returns."""

    title: str
    pages: int


@server.tool(annotations={"readOnlyHint": True})
def find_book(title: str) -> Book:
    """Return a book by its title."""
    return Book(title, len(title) * 10)


@server.tool(annotations={"readOnlyHint": True})
async def count_books(shelves: int, ctx: Context) -> str:
    """Count the books of the shelves, with progress after each one."""
    for shelf in range(shelves):
        await ctx.report_progress(shelf + 1, shelves)
    return f"{shelves * 20} books"


@server.tool()
async def lend_book(title: str, ctx: Context) -> str:
    """Ask the person for the reader's name, then lend the book."""
    answer: Any = await ctx.elicit("Who is the reader?", str)
    return f"{title}: {answer.action} {getattr(answer, 'data', '')}"


@server.resource("library://hours")
def get_hours() -> str:
    """Return the opening hours."""
    return "9 to 5"


@server.resource("library://shelves/{number}")
def get_shelf(number: int) -> str:
    """Return what is on a shelf."""
    return f"shelf {number}"


@server.prompt()
def review_book(title: str) -> str:
    """Ask for a review."""
    return f"Review {title}"


async def serve_http() -> None:
    """Serve until the process is ended."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"PORT {listener.getsockname()[1]}", flush=True)  # noqa: T201 - what callers wait for
    config = uvicorn.Config(server.http_app(), log_level="warning")
    await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        asyncio.run(serve_http())
    else:
        server.run("stdio", show_banner=False)
