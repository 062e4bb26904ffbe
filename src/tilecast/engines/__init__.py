"""Which kernels an engine launches for a model's operations, what its host costs, and the prediction of a whole batch."""
