"""One file per way to show a Report."""
