"""An MCP server over stdio (2026-07-28) that keeps every byte it gets: `stdin_recorder.py FILE`.

Nothing but the standard library. Its command line, its environment and its input stand in FILE.
"""

import json
import os
import sys
from pathlib import Path

ANY = {"type": "object", "properties": {}}


def main(tape: Path) -> None:
    """Serve until the input ends."""
    given = {"argv": sys.argv, "environ": dict(os.environ)}
    tape.write_text(json.dumps(given) + "\n", encoding="utf-8")
    for line in sys.stdin:
        with tape.open("a", encoding="utf-8") as file:
            file.write(line)
        message = json.loads(line)
        said = {
            "server/discover": {
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}},
            },
            "tools/list": {"tools": [{"name": "echo", "inputSchema": ANY}]},
            "tools/call": {"content": [{"type": "text", "text": "Hello"}]},
        }.get(message.get("method"), {})
        if "id" in message:
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": said}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
