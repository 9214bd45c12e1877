"""Looks for what would go wrong before it does: versions, permissions, the profiler, files, space.

In: this environment and paths. Out: `Check`s, each with what to do. Nothing is changed, and what may
crash (torch, TensorBoard's plugins) is tried in a process of its own.
"""
