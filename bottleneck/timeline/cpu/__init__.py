"""What only a run without a GPU has: processor time, page faults, and how phases divide."""
