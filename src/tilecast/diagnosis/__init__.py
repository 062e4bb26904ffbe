"""Why it takes as long as it does: what would change if the machine or the batch did."""
