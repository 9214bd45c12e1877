"""The script's process: running it as python would, watching it, and leaving it."""
