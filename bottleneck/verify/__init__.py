"""Experiments: the script with and without a fix, in turns; no torch here.

In: a script, fixes, predictions. Out: `Verification`. `source` finds what to begin or to go on with, `run`
carries it through, `session` runs the protocol, `arms` one process of it, `protocol` says what to run next,
`measure`, `parity` and `rows` what came of it, `edits` what to write into the script, `record` what the run's
own reports say of it. Everything but `source`, `run` and `arms` works on records and can be tested without a
process.
"""
