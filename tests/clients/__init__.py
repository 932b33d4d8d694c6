"""Clients of other people that use the gateway as a person's program would, and say what they saw.

Each is started with a URL, has its token in `TOKEN`, and prints one line of JSON: the era, how many
tools there are, what a call, a resource and a prompt gave, and the progress that it was told.
"""
