"""Beside a job that runs: captures of it are asked for and diagnosed, and its account is shown live."""
