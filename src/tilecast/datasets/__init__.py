"""12 million public measurements in one schema: readers, quality, splits and the local store (extra `data`)."""
