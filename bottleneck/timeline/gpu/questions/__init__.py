"""Questions to the replay of a GPU run: the step without a cause, or with one thing changed."""
