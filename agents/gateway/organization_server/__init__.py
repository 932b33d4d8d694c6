"""The bots: what the organization's own address offers, `/mcp` (FEATURES D6).

Each agent that a token may run is a tool to talk with; what runs is watched by its session; the
operations of REST that the token's role allows are tools too. `offering` answers clients, `tools`
says what a tool is, `auditing` writes each call down.
"""
