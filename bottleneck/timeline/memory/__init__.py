"""A memory history, read: blocks, what they are, and what the peak is made of."""
