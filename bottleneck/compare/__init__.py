"""Compares two sets of runs: what grew, whether that is certain, and what caused it.

In: run folders, diagnoses, baselines, or a script to run. Out: a `Comparison`. Counters have no noise
and decide at once; times are decided from repeated runs or left undecided.
"""
