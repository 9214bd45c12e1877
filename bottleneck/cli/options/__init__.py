"""Options: those that several verbs share, and a module each for verbs with many."""
