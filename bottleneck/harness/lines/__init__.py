"""Which of the user's lines take the time."""
