"""The command line: one file per verb, each imported only when that verb runs.

Every verb's module offers `command`, a click command; many options are in a module of `options`.
`main` is the entry point. A command parses, calls and prints.
"""
