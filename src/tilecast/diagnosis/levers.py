"""Levers by name, and how far they are moved, of one kernel and of whole batches alike."""

STEP = 1.1  # how far each lever is moved
GOAL = 1.2  # "20 % faster"
LARGEST_FACTOR = 16.0  # beyond it a goal is out of reach

WORDS = {
    "link_bytes_per_s": "link bandwidth",
    "network_bytes_per_s": "network bandwidth",
    "latency_factor": "latency, shorter",
    "boost_clock_hz": "SM clock",
    "num_sms": "number of SMs",
    "dram_bytes_per_s": "DRAM bandwidth",
    "l2_bytes": "L2 size",
    "tdp_w": "power limit",
}
