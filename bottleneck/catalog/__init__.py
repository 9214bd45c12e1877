"""The catalogue of fixes, one file per family; fixes are data and are matched to the facts of a run.

In: findings and the context of a run. Out: suggestions. Torch is named in the fixes' code, never imported.
"""
