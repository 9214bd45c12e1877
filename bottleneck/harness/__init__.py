"""The capture, in the user's process: the only folder that imports torch.

In: a plan. Out: a run folder, which is all that the analysis ever sees. `process` runs the script and
watches it, `events` replaces what is to be seen in torch, `windows` times the steps, `facts`, `lines` and
`trials` are plugged in. Nothing is imported here.
"""
