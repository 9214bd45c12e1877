"""Counts of what a step does: operators, synchronisations, counters that the run keeps."""
