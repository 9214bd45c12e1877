"""Rows for the pictures that reports draw."""
