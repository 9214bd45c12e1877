"""What a DataLoader does: in this process, when its workers start, and inside each of them."""
