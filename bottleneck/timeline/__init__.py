"""Lanes, budget and replay: arrays in, arrays out; nothing here reads a file or knows a fix."""
