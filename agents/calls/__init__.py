"""The call pipeline: the only path of a call, from any caller (`pipeline.py` is its start)."""
