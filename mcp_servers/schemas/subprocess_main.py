"""That child process's entry point.

The process in which strangers' schemas and documents may take as long as they like, until it
is killed.

Reads one JSON request a line and answers with one JSON line. It has no environment, no rows and no
network to lose; a timer of the kernel ends it when one request has used its processor time, however
deep in a regular expression it is.
"""

import json
import resource
import signal
import sys
from typing import Any

from mcp_servers.schemas.classify_schema import classify_schema
from mcp_servers.schemas.validate_arguments import find_violation

MEMORY = 1024 * 1024 * 1024  # bytes of address space


def main() -> None:
    """Serve requests from standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, which closes our input
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _send({"ready": True})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
        answer = _answer(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(answer)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        if request["task"] == "judge":
            judgement = classify_schema(request["schema"])
            return {"verdict": judgement.verdict, "reason": judgement.reason}
        if request["task"] == "outline":
            # Few children ever read a document: the others start in half the time.
            from mcp_servers.openapi.outline import build_outline

            return {
                "outline": build_outline(
                    request["text"],
                    document_url=request["document_url"],
                    chosen=request["chosen"],
                )
            }
        found = find_violation(request["schema"], request["arguments"])
    except (RecursionError, MemoryError):
        return {"gave_up": True}
    return {"violation": None if found is None else found.as_dict()}


def _send(answer: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode("ascii") + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
