#!/bin/sh
# The cheapest MCP server (2026-07-28, stdio): it answers discovery, and each tool call leaves three
# processes behind: one in its own session, one forked twice, one that ignores signals.
# $1 is a token in all of their command lines.
leave() {
  setsid sh -c 'sleep 600; : "$0"' "$1" >/dev/null 2>&1 &
  (setsid sh -c 'trap "" HUP INT TERM; sleep 600; : "$0"' "$1" >/dev/null 2>&1 &) &
}
while read -r line; do
  id=${line#*\"id\":}
  id=${id%%[,\}]*}
  case $line in
  *server/discover*)
    echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"supportedVersions\":[\"2026-07-28\"],\"capabilities\":{}}}"
    ;;
  *tools/call*)
    leave "$1"
    echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"content\":[]}}"
    ;;
  esac
done
