"""What is replaced in torch while a script runs, and how its events are noted."""
