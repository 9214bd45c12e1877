"""Where the steps are, how long one takes, and what stands behind that figure."""
