"""Link: the way a prompt's cache takes from the worker that prefilled it to the one that decodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilecast.engines.fit import stage_caches
from tilecast.errors import InvalidInput
from tilecast.hardware import NodeSpec
from tilecast.kernels.collectives import SendRecv
from tilecast.serving.costs import SIDES
from tilecast.serving.schedule import Lengths
from tilecast.serving.workers import Workers
from tilecast.workloads.aggregate import Price, weakest
from tilecast.workloads.graph import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a prompt's cache crosses: seconds by its tokens and side of the interval."""

    kind: str  # of the link in the box, or of the network between boxes
    is_network: bool
    seconds: Mapping[str, Mapping[int, float]]
    bytes: Mapping[int, float]  # that the busiest GPU sends or takes
    basis: str

    def of(self, side: str) -> Callable[[int], float]:
        return self.seconds[side].__getitem__


def link_between(prefill: Workers, decode: Workers, requests: Sequence[Lengths], node: NodeSpec, price: Price) -> Link:
    """Every GPU sends its share to the GPUs that need it; the one with most to send or to take decides."""
    lengths = sorted({pair[0] for pair in requests})
    together = prefill.num_gpus + decode.num_gpus
    apart = together > node.num_gpus
    if apart and node.network_bytes_per_s is None:
        raise InvalidInput(f"{together} GPUs are more than {node.id} has, {node.num_gpus}, and no network between such boxes is known")
    held = [
        max(
            max(stage_caches(w.found.config, w.found.shard, w.found.engine, Batch((n,), (1,)), w.found.kv_dtype)) for w in (prefill, decode)
        )
        for n in lengths
    ]
    message = SendRecv(bytes=np.array(held, dtype=np.float64), num_gpus=2, node=node, gpus_per_node=1 if apart else None)
    sent = price(message, prefill.found.gpu)
    seconds = {side: dict(zip(lengths, np.asarray(getattr(sent, side)).tolist(), strict=True)) for side in SIDES}
    kind = (node.network_kind or "network") if apart else node.link_kind
    basis = weakest(str(each) for each in sent.basis)
    return Link(kind=kind, is_network=apart, seconds=seconds, bytes=dict(zip(lengths, map(float, held), strict=True)), basis=basis)
