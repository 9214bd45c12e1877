"""The command line: one file per verb, each imported only when that verb runs.

Every verb's module offers `command`, a click command. Its options may be in a module of their own,
`<verb>_options`. `main` is the entry point. A command parses, calls and prints.
"""
