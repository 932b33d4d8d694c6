"""Entry point of the child process that handles untrusted schemas and documents.

Reads one JSON request per line and writes one JSON line as answer. It has no environment, database
or network; a kernel timer ends it when a request has used its CPU time, even inside a regular
expression.
"""

import json
import resource
import signal
import sys
from typing import Any

from mcp_servers.schemas.classify_schema import classify_schema
from mcp_servers.schemas.validate_arguments import find_violation

MAX_MEMORY_BYTES = 1024 * 1024 * 1024  # bytes of address space


def main() -> None:
    """Handle requests from standard input until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes our input
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _send({"ready": True})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
        answer = _handle_request(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(answer)


def _handle_request(request: dict[str, Any]) -> dict[str, Any]:
    try:
        if request["task"] == "judge":
            verdict = classify_schema(request["schema"])
            return {"verdict": verdict.verdict, "reason": verdict.reason}
        if request["task"] == "outline":
            # Few children need this import; without it, the others start in half the time.
            from mcp_servers.openapi.document_outline import build_outline

            return {
                "outline": build_outline(
                    request["text"],
                    document_url=request["document_url"],
                    operation_keys=request["chosen"],
                )
            }
        violation = find_violation(request["schema"], request["arguments"])
    except (RecursionError, MemoryError):
        return {"gave_up": True}
    return {"violation": None if violation is None else violation.as_dict()}


def _send(answer: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode("ascii") + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
