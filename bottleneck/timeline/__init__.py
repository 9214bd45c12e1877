"""Lanes, budget and replay: arrays in, arrays out; nothing here reads a file or knows a fix.

A trace answers questions (`trace`), steps are found in it and timed (`steps`), it becomes a program that can
be replayed (`lanes`), with what only a GPU (`gpu`) or only a CPU has (`cpu`). Beside them `counts`, `memory`
and `views`. `result` is what a reading gives.
"""
