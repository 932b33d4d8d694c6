"""A raw server that sends change notifications, and helpers to read the resulting rows."""

from mcp_servers.models import HealthCheck, Server
from mcp_servers.subscriptions.change_notification_status import load_change_notification_status
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp

CAPABILITIES = {"tools": {"listChanged": True}}


class ListChangedServer:
    """A raw server on the runtime's loop; a test chooses how it answers `subscriptions/listen`."""

    def __init__(self, listen):
        self.listen = listen
        self.tools = ["one"]
        self.http = RawHttp(self._answer)
        self._listening = None

    def _answer(self, request):
        if request.method == "server/discover":
            return raw_http_server.discovery(request, capabilities=CAPABILITIES)
        if request.method == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in self.tools]
            return raw_http_server.result(request, {"tools": tools})
        return self.listen(request)

    async def start(self):
        self._listening = self.http.listening()
        await self._listening.__aenter__()
        return self

    async def stop(self):
        await self._listening.__aexit__(None, None, None)

    def count_requests(self, method):
        return self.http.methods().count(method)


def state(server):
    """Return the state of the server's change notifications."""
    return load_change_notification_status(Server.objects.get(pk=server.pk)).state


def discoveries(server):
    """Count the server's successful discoveries."""
    return HealthCheck.objects.filter(server=server, kind="discovery", ok=True).count()
