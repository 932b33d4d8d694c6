"""Third-party clients that use the gateway and print what they received.

Each is started with a URL, has its token in `TOKEN`, and prints one line of JSON: the era, the
number of tools, the results of a call, a resource and a prompt, and the progress.
"""
