"""The step by whose code it is: the user's functions and lines, and the library calls below them."""
