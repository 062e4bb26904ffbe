"""Every GPU and node fact, in one sourced place."""

from tilecast.hardware.catalogue import (
    as_catalogued,
    catalogue_hash,
    foreign_note,
    gpu,
    gpu_ids,
    gpus,
    in_long_runs,
    node,
    node_ids,
    nodes,
    power_note,
    resolution_note,
)
from tilecast.hardware.node_spec import NodeSpec, default_node, default_node_id
from tilecast.hardware.spec import GpuSpec, Source, with_overrides

__all__ = [
    "GpuSpec", "NodeSpec", "Source", "as_catalogued", "catalogue_hash", "default_node", "default_node_id", "foreign_note",
    "gpu", "gpu_ids", "gpus", "in_long_runs", "node", "node_ids", "nodes", "power_note", "resolution_note", "with_overrides",
]  # fmt: skip
