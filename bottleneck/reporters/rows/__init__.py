"""What reports say, as plain rows and words, before any format renders them."""
