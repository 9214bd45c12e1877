"""Checks versions, permissions, the profiler, files and disk space for problems.

In: this environment and paths. Out: `Check`s, each with what to do. Nothing is changed. What may crash
(torch, TensorBoard's plugins) is tried in a separate process.
"""
