"""Other ways to what a call computes: known ones, tried on the call's own arguments.

In: the calls of torch's functions in a step. Out: which of them a cheaper way gives the same for, and what it
takes. `way` says what a way is, `timing` tries one, `watch` finds the calls that are worth it; all others are
the ways.
"""
