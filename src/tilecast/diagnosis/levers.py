"""How far levers are moved, of one kernel and of whole batches alike."""

STEP = 1.1  # how far each lever is moved
GOAL = 1.2  # "20 % faster"
LARGEST_FACTOR = 16.0  # beyond it a goal is out of reach
