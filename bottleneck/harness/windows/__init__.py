"""From warm-up to the last capture: steps, their clock, and how long each window lasts."""
