"""Collectives as latency plus volume over the busiest link, for the algorithms a library chooses from: the cheapest one runs.

What `bytes` counts, as in NCCL's own tests, is always the whole buffer of one rank: the message of all_reduce, broadcast and send_recv;
what all_gather leaves on every rank; what reduce_scatter takes from every rank; what all_to_all sends from one rank, its share included.

Beyond one node a collective runs inside each node over its links and between nodes over one network adapter per GPU, pipelined, so that the
slower of the two decides. A ring passes everything through every adapter, however few nodes there are; trees add up inside a node first.
Links and networks come from the node; `link_bytes_per_s` and `network_bytes_per_s` override them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

from tilecast import hardware
from tilecast.dtypes import dtype as number_format
from tilecast.errors import InvalidInput, SpecError
from tilecast.execution import Analysis, Placement, Protocol, constants
from tilecast.execution.analytic import SHARPNESS
from tilecast.execution.fitted import load
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec, NodeSpec
from tilecast.kernels.base import above_zero, sizes

IDENTITIES = ("nccl", "custom")
LARGEST_CUSTOM_BYTES = 8 * 2**20  # engines hand larger messages to NCCL
MAX_GPUS_CUSTOM = 8  # that their kernels are built for
# vLLM's and SGLang's custom_all_reduce.cuh: 36 blocks of 512 threads, each with one 16-byte word under way; and up to how many bytes every
# rank reads all of the others' messages, by the most ranks: a pair always does.
IN_FLIGHT_BYTES = 36 * 512 * 16
ONE_SHOT_BYTES = {2: LARGEST_CUSTOM_BYTES, 4: 512 * 2**10, 8: 256 * 2**10}
# vLLM's all_reduce_utils.py: from how many bytes on eight GPUs whose switch adds sum through symmetric memory, by whether they are made of
# two dies. Two barriers of a signal and a wait each, the switch's sum and its broadcast are six hops after the first.
SYMMETRIC_BYTES = {False: 256 * 2**10, True: 2**20}
SYMMETRIC_RANKS = 8
SYMMETRIC_HOPS = 7
GPUS_OF_A_TRAY = 4  # of a rack that is one NVLink domain
# TensorRT-LLM's kernel for racks (mnnvlTwoShotAllreduceKernel): parts to their ranks, sums to all by multicast; data are their own flags.
RACK_HOPS = 3
JOINED = ("switch", "mesh")  # topologies in which every GPU may read every other's memory; elsewhere just a pair does
DUAL_DIE_LINKS = ("nvlink5",)  # of GPUs made of two dies: a hop takes longer
# What rings and trees reach of adapters: NVIDIA's own DGX A100 192 of 200 GB/s (NVIDIA/nccl#812), 46 to 48 of 50 GB/s each of H100
# (NVIDIA/nccl-tests#290). A lone pair that sends reaches as much of its adapter as of NVLink: 36 of 50 GB/s in Vidur's rows of H100.
NETWORK_FRACTION = 0.94
# A hop between nodes, by whether a pair sends: NCCL's own table (tuning.cc, net), of trees with few bytes (LL) and of its simple protocol.
# A tiny all-reduce of two A100 in two boxes takes 20 us, its start included (NVIDIA/nccl-tests#150); pairs 12 us more than inside a box on
# H100 and 14 on A100 (Vidur's rows).
NETWORK_STEP_S = {False: 5e-6, True: 14e-6}
FULL_BOX = 8  # GPUs: a smaller catalogued box is one that somebody measured, and has to be named


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveConstants:
    """constants/collectives.toml says what each one is."""

    link_fraction: float
    switch_bytes_per_s: float
    ramp_s: float
    start_s: float
    step_s: float
    packaged_step_s: float


@cache
def collective_constants() -> CollectiveConstants:
    return load(CollectiveConstants, "collectives")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Who takes part and what joins them. Arrays (L,)."""

    bytes: Floats
    ranks: Floats
    per_node: Floats
    hop_s: float  # from one rank to the next: flag, fence, and the way through the switch
    latency_factor: float  # of hops between nodes
    node: NodeSpec
    link_bytes_per_s: Floats  # nominal, one GPU, one direction
    reached_bytes_per_s: Floats  # what data reach of it
    switch_bytes_per_s: Floats  # while the switch adds
    network_bytes_per_s: Floats  # infinite inside one node
    num_nodes: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One algorithm: its steps, what one GPU's link carries in the node, and what its adapter carries between nodes. Arrays (L,)."""

    name: str
    steps: Floats
    volume: Floats
    network_steps: Floats | float = 0.0  # of the steps, those between nodes
    network_volume: Floats | float = 0.0
    by_pairs: bool = False  # ranks send to one another, no ring or tree
    in_switch: bool = False
    chunked: bool = True  # passed on in chunks, whose pipeline has to fill
    by_engine: bool = False  # a kernel of the inference engine, not of NCCL
    if_faster: bool = False  # ... that it runs only where NCCL would take longer
    in_flight_bytes: float = IN_FLIGHT_BYTES  # of an engine's kernel: that its threads ask for at once
    usable: Floats | bool = True


@cache
def _catalogued_node(gpu: str) -> NodeSpec | None:
    return next((node for node in hardware.nodes() if node.gpu == gpu and node.num_gpus >= FULL_BOX), None)


def node_of(gpu: GpuSpec, name: str | NodeSpec | None) -> NodeSpec:
    """The node asked for, else the catalogue's full box of this GPU, else up to 8 cards on their own link or PCIe."""
    if isinstance(name, NodeSpec):
        return name
    if name is not None and name != hardware.default_node_id(gpu):
        return hardware.node(name)
    found = (None if name else _catalogued_node(gpu.id)) or hardware.default_node(gpu)
    changed = gpu.overrides.get("link_bytes_per_s")
    if changed is None or found.link_kind != gpu.link_kind:
        return found
    return replace(found, link_bytes_per_s=changed, pair_bytes_per_s=found.pair_bytes_per_s * changed / found.link_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Collective(ABC):
    """What all collectives take: the buffer of one rank, how many GPUs, and where they stand."""

    family: ClassVar[str]
    waits: ClassVar[bool] = True  # for the last rank to arrive

    bytes: Any
    num_gpus: Any
    gpus_per_node: Any = None  # None: as many as the node holds
    node: str | NodeSpec | None = None
    link_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None
    latency_factor: float | None = None  # what if: of the start and of every hop
    dtype: str = "bf16"
    identity: str | None = None

    def newest_identity(self, gpu: GpuSpec) -> str:
        """What runs unless an engine's own kernel is asked for."""
        del gpu
        return "nccl"

    @abstractmethod
    def ways(self, group: Group) -> list[Way]:
        """The algorithms a library chooses among; inside a box the first moves the least."""

    def least_volume(self, group: Group, node: NodeSpec) -> tuple[Floats, Floats]:
        """Bytes that must cross the busiest GPU's link, and its adapter, whatever the algorithm."""
        del node
        way = self.ways(group)[0]
        return way.volume, np.asarray(way.network_volume + 0.0 * way.volume)

    def analyse(self, gpu: GpuSpec, protocol: Protocol) -> Analysis:
        """The same account as a kernel's, with two pipelines: link and network."""
        number_format(self.dtype)
        using, node = self._constants(), node_of(gpu, self.node)
        identity = self.identity or self.newest_identity(gpu)
        if identity not in IDENTITIES:
            raise InvalidInput(f"identity = {identity!r} must be one of {', '.join(IDENTITIES)}")
        group = self._group(node, using)
        ways = _run_by(identity, self.ways(group))
        if not node.reduces_in_switch:
            ways = [way for way in ways if not way.in_switch]
        overhead_s = self._overhead_s(group, gpu, protocol, identity, using)
        costs = [_cost(way, group, using, gpu) for way in ways]
        times = np.stack([np.where(way.usable, cost.total_s, np.inf) for way, cost in zip(ways, costs, strict=True)]) + overhead_s
        link_bytes, network_bytes = self.least_volume(group, node)
        demand = {"link": link_bytes / group.link_bytes_per_s, "network": network_bytes / group.network_bytes_per_s}
        bound_s = np.maximum(demand["link"], demand["network"])
        best = np.argmin(times, axis=0)
        fastest = times[best, np.arange(len(best))]
        sharpness = SHARPNESS
        analytic_s = fastest * np.sum((fastest / times) ** sharpness, axis=0) ** (-1.0 / sharpness)
        analytic_s = np.maximum(analytic_s, bound_s)

        none = np.zeros_like(bound_s)
        waits_s, link_s, network_s = (
            np.stack([getattr(cost, name) + none for cost in costs])[best, np.arange(len(best))]
            for name in ("waits_s", "link_s", "network_s")
        )
        slower = np.where(network_s > link_s, "network", "link")
        return Analysis(
            bound_s=bound_s,
            analytic_s=analytic_s,
            bound_by=np.where(np.maximum(link_s, network_s) < waits_s + overhead_s, "launch", slower),
            demand_s=demand,
            busy_s={"link": link_bytes / group.reached_bytes_per_s, "network": demand["network"] / _network_fraction(ways[0], using)},
            placement=Placement(num_tasks=group.ranks, busiest_tasks=none + 1.0, waves=none + 1.0, tail_fraction=none),
            clock_hz=none + gpu.boost_clock_hz,
            launch_s=using.start_s + overhead_s,
            variant=np.asarray([way.name for way in ways])[best],
        )

    def rates(self, gpu: GpuSpec) -> dict[str, float]:
        """What a launch is a matter of, under the names of the parameters that set it: its link, its network beyond one node, latency."""
        group = self._group(node_of(gpu, self.node), self._constants())
        found = {"link_bytes_per_s": float(group.link_bytes_per_s[0]), "network_bytes_per_s": float(group.network_bytes_per_s[0])}
        return {name: rate for name, rate in found.items() if np.isfinite(rate)} | {"latency_factor": self.latency_factor or 1.0}

    def _constants(self) -> CollectiveConstants:
        using = collective_constants()
        if self.latency_factor is None:
            return using
        factor = above_zero(self.latency_factor, "latency_factor")
        slower = {name: factor * getattr(using, name) for name in ("start_s", "step_s", "packaged_step_s")}
        return replace(using, **slower)

    def _overhead_s(self, group: Group, gpu: GpuSpec, protocol: Protocol, identity: str, using: CollectiveConstants) -> Floats:
        """What the timer adds: to a profiler's kernel time the wait for the last rank, which starts about a start later.

        NCCL's tests launch back to back: their events hold no host gap. An engine's eager call also copies.
        """
        none = np.zeros_like(group.bytes)
        if identity == "nccl":
            return none + (using.start_s if protocol.timer == "profiler" and self.waits else 0.0)
        if protocol.timer != "event":
            return none
        machine = constants()
        return np.asarray(machine.host_event_s + 2.0 * group.bytes / (gpu.dram_data_bytes_per_s * machine.dram_fraction))

    def _group(self, node: NodeSpec, using: CollectiveConstants) -> Group:
        given = {} if self.gpus_per_node is None else {"gpus_per_node": self.gpus_per_node}
        size = sizes(bytes=self.bytes, num_gpus=self.num_gpus, **given)
        ranks = size["num_gpus"][:, 0]
        if (ranks < 2).any():
            raise InvalidInput(f"num_gpus = {int(ranks.min())} must be at least 2: one GPU has nobody to talk to")
        per_node = size["gpus_per_node"][:, 0] if given else np.minimum(ranks, float(node.num_gpus))
        per_node = np.minimum(per_node, ranks)
        if (per_node > node.num_gpus).any():
            raise InvalidInput(f"gpus_per_node = {int(per_node.max())} is more than the {node.num_gpus} GPUs of {node.id}")
        if (ranks % per_node != 0).any():
            row = int(np.argmax(ranks % per_node != 0))
            raise InvalidInput(f"num_gpus = {int(ranks[row])} must be a multiple of the {int(per_node[row])} GPUs used in each node")
        num_nodes = ranks / per_node
        asked_network = self.network_bytes_per_s
        network = node.network_bytes_per_s if asked_network is None else above_zero(asked_network, "network_bytes_per_s")
        if (num_nodes > 1).any() and network is None:
            asked = f"num_gpus = {int(ranks.max())} needs several {node.id}"
            raise SpecError(f"{asked}; its network is not known; give network_bytes_per_s (step: --network)")
        link, fraction = self._links(node, per_node, using)
        return Group(
            bytes=size["bytes"][:, 0],
            ranks=ranks,
            per_node=per_node,
            hop_s=using.packaged_step_s if node.link_kind in DUAL_DIE_LINKS else using.step_s,
            latency_factor=self.latency_factor or 1.0,
            node=node,
            link_bytes_per_s=link,
            reached_bytes_per_s=link * fraction,
            switch_bytes_per_s=np.minimum(link * fraction, using.switch_bytes_per_s),
            network_bytes_per_s=np.where(num_nodes > 1, network or np.inf, np.inf),
            num_nodes=num_nodes,
        )

    def _links(self, node: NodeSpec, per_node: Floats, using: CollectiveConstants) -> tuple[Floats, Floats]:
        """The nominal rate at which one GPU reaches its peers, and the share of it that data reach."""
        # Behind a host bridge what goes in and what goes out share one way; a pair has it for itself.
        crossings = np.where((node.topology == "pcie") & (per_node > 2), 2.0, 1.0)
        fraction = using.link_fraction / crossings
        if node.reached_bytes_per_s is not None:
            fraction = np.full_like(per_node, node.reached_bytes_per_s / node.link_bytes_per_s)
        if self.link_bytes_per_s is not None:
            return np.full_like(per_node, above_zero(self.link_bytes_per_s, "link_bytes_per_s")), fraction
        rate = np.full_like(per_node, node.link_bytes_per_s)
        if node.topology == "mesh":  # a link of its own to each peer: fewer peers, fewer links
            rate = np.minimum(rate, node.pair_bytes_per_s * np.maximum(per_node - 1.0, 1.0))
        if node.topology == "bridge" and node.pcie_bytes_per_s is not None:  # only pairs have it; of a ring's hops every other one is PCIe
            rate = np.where(per_node > 2, node.pcie_bytes_per_s, rate)
        return rate, fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one way costs. Arrays (L,)."""

    waits_s: Floats | float  # start and hops
    link_s: Floats
    network_s: Floats
    ramp_s: Floats | float  # filling the pipeline of chunks

    @property
    def total_s(self) -> Floats:
        return np.asarray(self.waits_s + np.maximum(self.link_s, self.network_s) + self.ramp_s)


def _run_by(identity: str, ways: list[Way]) -> list[Way]:
    """NCCL chooses among its own; an engine runs its own wherever it can, or where that is faster, and leaves the rest to NCCL."""
    own = [way for way in ways if way.by_engine]
    if identity != "custom" or not own:
        return [way for way in ways if not way.by_engine]
    taken = np.logical_or.reduce([np.asarray(way.usable) for way in own if not way.if_faster])
    return [way if way.by_engine else replace(way, usable=way.usable & ~taken) for way in ways]


def _network_fraction(way: Way, using: CollectiveConstants) -> float:
    return using.link_fraction if way.by_pairs else NETWORK_FRACTION


def _cost(way: Way, group: Group, using: CollectiveConstants, gpu: GpuSpec) -> Cost:
    """Start, steps, the slower of link and network, and what filling the pipeline of chunks costs."""
    if way.by_engine:
        return _engine_cost(way, group, using, gpu)
    rate = group.switch_bytes_per_s if way.in_switch else group.reached_bytes_per_s
    link_s = np.asarray(way.volume / rate)
    network_s = np.asarray(way.network_volume / (group.network_bytes_per_s * _network_fraction(way, using)))
    transfer_s = np.maximum(link_s, network_s)
    ramp_s = using.ramp_s * transfer_s / (using.ramp_s + transfer_s) if way.chunked else 0.0
    outside_s = way.network_steps * NETWORK_STEP_S[way.by_pairs] * group.latency_factor
    waits_s = using.start_s + (way.steps - way.network_steps) * group.hop_s + outside_s
    return Cost(waits_s=waits_s, link_s=link_s, network_s=network_s, ramp_s=ramp_s)


def _engine_cost(way: Way, group: Group, using: CollectiveConstants, gpu: GpuSpec) -> Cost:
    """Threads read their peers' memory, as many words at once as there are threads; hops beyond the first overlap what is moved.

    Over PCIe reads go both ways through one bridge, and the first handshake takes as long as NCCL's.
    """
    machine = constants()
    over_pcie = group.node.topology == "pcie"
    start_s = using.start_s if over_pcie else machine.launch_s + machine.launch_cycles / gpu.boost_clock_hz
    crossings = 2.0 if over_pcie and group.node.reached_bytes_per_s is None else 1.0
    rate = np.minimum(group.reached_bytes_per_s / crossings, way.in_flight_bytes / group.hop_s)
    moved_s = np.hypot((way.steps - 1.0) * group.hop_s, way.volume / rate)
    return Cost(waits_s=start_s + group.hop_s, link_s=moved_s, network_s=np.zeros_like(moved_s), ramp_s=0.0)


def _ring(group: Group, passes: float) -> Way:
    """`passes` times around: every rank sends all but its own share, and so does every adapter of those that the rings cross by."""
    sent = (group.ranks - 1.0) / group.ranks * group.bytes
    return Way(
        name="ring", steps=passes * (group.ranks - 1.0), volume=passes * (group.per_node > 1) * sent,
        network_steps=passes * (group.num_nodes - 1.0), network_volume=passes * (group.num_nodes > 1) * sent / group.per_node,
    )  # fmt: skip


def _least_outside(group: Group) -> Floats:
    """What one adapter must carry of one pass: all but its node's own share."""
    return np.asarray((group.num_nodes - 1.0) / group.num_nodes * group.bytes / group.per_node)


def _tree_outside(group: Group) -> tuple[Floats, Floats]:
    """Steps between nodes, and what the busiest node's adapters carry, of NCCL's two trees: half of the message goes up and down in each.

    It has a parent and two children in one tree and a parent in the other, and sends half to each; of two or three nodes it has fewer.
    """
    halves = np.where(group.num_nodes > 1, np.minimum(group.num_nodes, 4.0), 0.0)
    return np.asarray(2.0 * np.ceil(np.log2(group.num_nodes))), np.asarray(halves * group.bytes / 2.0 / group.per_node)


def _is_symmetric(group: Group, engine: str | None) -> Floats:
    """Which messages vLLM hands to the switch."""
    least = SYMMETRIC_BYTES[group.node.link_kind in DUAL_DIE_LINKS]
    adds = engine == "vllm" and group.node.reduces_in_switch
    return np.asarray((group.ranks == SYMMETRIC_RANKS) & (group.bytes >= least) & adds)


def _crosses_trays(group: Group) -> Floats:
    """Which groups span trays of a rack. Only for these does TensorRT-LLM sum in two steps, whatever their number and size; elsewhere its
    rows are those of one step up to where NCCL is faster (512 KB on the eight GPUs of a DGX H100), then NCCL's. NCCL leaves the adding to
    a switch in a box only: its rows of eight and 16 GB300 are a ring's."""
    return np.asarray((group.ranks > GPUS_OF_A_TRAY) & (group.node.num_gpus > MAX_GPUS_CUSTOM))


def _by_rule(group: Group, allowed: Floats) -> tuple[Floats, Floats]:
    """Which messages vLLM and SGLang send in one step, and which in two."""
    limits = np.select([group.ranks <= most for most in ONE_SHOT_BYTES], list(ONE_SHOT_BYTES.values()), 0)
    in_one = (group.bytes < limits) | (group.ranks == 2)
    return allowed & in_one, allowed & ~in_one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllReduce(_Collective):
    """The sum of every rank's message, on every rank."""

    family: ClassVar[str] = "all_reduce"

    engine: str | None = None  # whose kernels "custom" stands for

    def ways(self, group: Group) -> list[Way]:
        ring = _ring(group, 2.0)
        one_node = group.num_nodes == 1
        depth = np.ceil(np.log2(group.ranks))
        hops, outside = _tree_outside(group)
        allowed = (
            one_node & (group.bytes <= LARGEST_CUSTOM_BYTES) & (group.ranks <= (MAX_GPUS_CUSTOM if group.node.topology in JOINED else 2))
        )
        in_symmetric = allowed & _is_symmetric(group, self.engine)
        allowed = allowed & ~in_symmetric
        is_trtllm = self.engine == "trtllm"
        crosses = _crosses_trays(group)
        if is_trtllm:
            allowed = np.asarray(allowed | (one_node & crosses))
        in_one, in_two = (allowed, allowed & crosses) if is_trtllm else _by_rule(group, allowed)
        read = (group.ranks - 1.0) * group.bytes
        asked = np.inf if is_trtllm else IN_FLIGHT_BYTES
        return [
            ring,
            Way(name="tree", steps=2.0 * depth, volume=2.0 * group.bytes, network_steps=hops, network_volume=outside),
            Way(  # between nodes a tree (NVLSTree)
                name="switch", steps=group.per_node + 1.0 + hops, volume=group.bytes * (1.0 + 1.0 / group.per_node), network_steps=hops,
                network_volume=outside, in_switch=True, usable=np.asarray((group.per_node > 2) & np.logical_not(crosses)),
            ),
            Way(
                name="one-shot", steps=np.ones_like(read), volume=read, by_engine=True, in_flight_bytes=asked, usable=in_one,
                if_faster=is_trtllm and group.node.topology in JOINED,
            ),
            # Each of the two barriers is told to every peer.
            Way(
                name="two-shot", steps=RACK_HOPS + 0.0 * read if is_trtllm else group.ranks + 3.0, volume=ring.volume, by_engine=True,
                in_flight_bytes=asked, usable=in_two,
            ),
            Way(
                name="symmetric", steps=SYMMETRIC_HOPS + 0.0 * read, volume=ring.volume, by_engine=True, in_flight_bytes=np.inf,
                usable=in_symmetric,
            ),
        ]  # fmt: skip

    def least_volume(self, group: Group, node: NodeSpec) -> tuple[Floats, Floats]:
        ring = _ring(group, 2.0)
        in_switch = node.reduces_in_switch & (group.per_node > 1)
        return np.where(in_switch, np.minimum(group.bytes, ring.volume), ring.volume), 2.0 * _least_outside(group)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllGather(_Collective):
    """Every rank's share, on every rank; `bytes` is all shares together."""

    family: ClassVar[str] = "all_gather"

    def ways(self, group: Group) -> list[Way]:
        return [_ring(group, 1.0)]

    def least_volume(self, group: Group, node: NodeSpec) -> tuple[Floats, Floats]:
        del node
        return _ring(group, 1.0).volume, _least_outside(group)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReduceScatter(_Collective):
    """The sum, each rank keeping its share; `bytes` is what every rank brings."""

    family: ClassVar[str] = "reduce_scatter"

    def ways(self, group: Group) -> list[Way]:
        return [_ring(group, 1.0)]

    def least_volume(self, group: Group, node: NodeSpec) -> tuple[Floats, Floats]:
        del node
        return _ring(group, 1.0).volume, _least_outside(group)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllToAll(_Collective):
    """Every rank sends an equal share of its `bytes` to every rank, all pairs at once."""

    family: ClassVar[str] = "all_to_all"

    def ways(self, group: Group) -> list[Way]:
        share = group.bytes / group.ranks
        inside, outside = (group.per_node - 1.0) * share, (group.ranks - group.per_node) * share
        apart = np.where(group.num_nodes > 1, 1.0, 0.0)
        return [
            Way(name="pairs", steps=np.ones_like(share), volume=inside, network_steps=apart, network_volume=outside, by_pairs=True),
        ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Broadcast(_Collective):
    """One rank's message, on every rank: a chain that passes chunks on."""

    family: ClassVar[str] = "broadcast"

    def ways(self, group: Group) -> list[Way]:
        inside = group.bytes * (group.per_node > 1)
        outside = (group.num_nodes > 1) * group.bytes / group.per_node
        return [Way(name="chain", steps=group.ranks - 1.0, volume=inside, network_steps=group.num_nodes - 1.0, network_volume=outside)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SendRecv(_Collective):
    """One rank sends its message to one other; with `gpus_per_node` 1 they stand in different nodes."""

    family: ClassVar[str] = "send_recv"
    waits: ClassVar[bool] = False

    def ways(self, group: Group) -> list[Way]:
        apart = np.where(group.num_nodes > 1, 1.0, 0.0)
        return [
            Way(
                name="copy", steps=np.ones_like(group.bytes), volume=group.bytes * (1.0 - apart), network_steps=apart,
                network_volume=group.bytes * apart, by_pairs=True, chunked=False,
            ),
        ]  # fmt: skip


KERNELS = (AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, SendRecv)
