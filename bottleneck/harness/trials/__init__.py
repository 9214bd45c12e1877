"""Experiments in the running process: patches, seeds, losses."""
