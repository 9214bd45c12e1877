"""The whole job: where its hours go, from the first import to the exit, and steps that grow."""
