"""An MCP server over stdio (2026-07-28) that records its input: `stdin_recorder.py FILE`.

It uses only the standard library and writes its command line, environment and input to FILE.
"""

import json
import os
import sys
from pathlib import Path

ANY = {"type": "object", "properties": {}}


def main(tape: Path) -> None:
    """Serve until the input ends."""
    start = {"argv": sys.argv, "environ": dict(os.environ)}
    tape.write_text(json.dumps(start) + "\n", encoding="utf-8")
    for line in sys.stdin:
        with tape.open("a", encoding="utf-8") as file:
            file.write(line)
        message = json.loads(line)
        result = {
            "server/discover": {
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}},
            },
            "tools/list": {"tools": [{"name": "echo", "inputSchema": ANY}]},
            "tools/call": {"content": [{"type": "text", "text": "Hello"}]},
        }.get(message.get("method"), {})
        if "id" in message:
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
