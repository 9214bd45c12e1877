"""A run from outside: its plan, its place, its process and its folder; no torch here."""
