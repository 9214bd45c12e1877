"""What a trace says: one vocabulary for all profilers, and the questions that a trace answers."""
