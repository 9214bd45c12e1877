"""Lanes of host and device work: the program of a run, its replay, calibration and budget."""
