"""The capture, in the user's process: the only folder that imports torch.

In: a plan. Out: a run folder, which is all that the analysis ever sees. Nothing is imported here,
since the command line's light parent process reads `plan`, `store` and `launch` without torch.
"""
