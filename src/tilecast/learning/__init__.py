"""The learned correction of analytic times: features, trees, levels per GPU, artifacts. Numpy alone evaluates it."""
