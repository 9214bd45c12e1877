"""Renderers: a fully resolved diagnosis in, text out; nothing is looked up or measured here.

`base` names the formats and the protocol, `rows` builds the plain rows that terminal and markdown
share, `output` is the one owner of files and of standard output.
"""
