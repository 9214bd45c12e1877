"""A run from outside: its plan, its place, its process and its folder; no torch here.

In: what the user names to be run. Out: a run folder. `run_script` does it from beginning to end.
"""
