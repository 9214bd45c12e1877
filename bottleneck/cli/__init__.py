"""The command line: one file per verb, each imported only when that verb runs.

Every verb's module offers `command`, a click command; `main` is the entry point.
"""
