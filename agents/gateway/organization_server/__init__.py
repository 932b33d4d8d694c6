"""The bots: what the organization's own address offers, `/mcp` (docs/bots.md).

Each agent that a token may run is a tool to talk with; what runs is watched by its session; the
operations of REST that the token's role allows are tools too. `handlers` answers clients, `tools`
says what a tool is and writes each call down.
"""
