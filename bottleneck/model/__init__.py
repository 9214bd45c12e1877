"""Plain, frozen data that every other folder speaks: run, trace, facts, findings, fixes, diagnosis.

In: nothing. Out: types only; no file is read here and torch is never imported.
"""
