"""Several ranks of one job: summaries in; one clock, an account of the step, and who is late out."""
