"""Where measured times of configurations come from: one file for each way."""
