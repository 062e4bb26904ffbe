"""Many configurations side by side, and which of them is best."""
