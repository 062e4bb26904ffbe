"""What all kernels that stream rows share: bytes in, bytes out, a few operations per element, and rows that may have to be read again.

A block of threads takes one row (or a slice of a flat tensor). Kernels that reduce over a row before they write it read the row again;
that is free while the rows of all resident blocks stay in cache, and a full pass over DRAM when they do not.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from tilecast import hardware
from tilecast.dtypes import dtype as number_format
from tilecast.errors import InvalidInput
from tilecast.execution import Protocol, TaskSet, constants
from tilecast.execution.analytic import launch_seconds
from tilecast.execution.arithmetic import ceil, clip, maximum, minimum
from tilecast.execution.cache import hit_fraction, least_from_dram
from tilecast.execution.fitted import load
from tilecast.execution.tasks import Numbers
from tilecast.hardware import GpuSpec

SLICE = 1024  # elements of a flat tensor that one block takes
BLOCK_THREADS = 256  # of a flat tensor's block
IDENTITIES = (None, "vector", "scalar")
VECTOR_BYTES = 16.0  # the widest load or store of a thread
FED_MOST = "a100-sxm-80gb"  # of the GPUs whose rows decide the rate, the one with the most DRAM bytes for an SM and clock


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingConstants:
    """constants/streaming.toml says what each one is."""

    vector_bytes_per_clock_per_sm: float
    scalar_accesses_per_clock_per_sm: float
    start_s: float


@cache
def streaming_constants() -> StreamingConstants:
    return load(StreamingConstants, "streaming")


def vector_bytes_per_clock_per_sm(gpu: GpuSpec) -> float:
    """The fitted rate. Parts with more DRAM for an SM than those it was fitted on (H200, B200) are built to take that in."""
    return streaming_constants().vector_bytes_per_clock_per_sm * max(1.0, _dram_share(gpu) / _share_fitted_on())


@cache
def _share_fitted_on() -> float:
    return _dram_share(hardware.gpu(FED_MOST))


def _dram_share(gpu: GpuSpec) -> float:
    """Bytes of one SM and clock; SMs of a what-if, more of them or fewer, are those of the part that it changes."""
    return gpu.dram_bytes_per_s / (hardware.as_catalogued(gpu).num_sms * gpu.boost_clock_hz)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What one block (a row, or a slice of a flat tensor) asks for. Columns (L, 1), or plain numbers."""

    blocks: Numbers
    read_bytes: Numbers  # per block
    written_bytes: Numbers  # per block
    flop: Numbers  # per block
    special_ops: Numbers = 0.0  # per block
    threads: Numbers = BLOCK_THREADS  # per block
    shared_bytes: Numbers = 0.0  # per launch: weights and tables that all blocks read
    rereads: Numbers = 0.0  # times a block reads its input again
    reduces: bool = False  # a block waits for its whole row before it writes
    access_bytes: Numbers = VECTOR_BYTES  # of one load or store: an element where a kernel takes them one by one
    launches: Numbers = 1.0  # kernels one call launches
    host_calls: int = 1  # dispatches of one eager call


def element_bytes(name: str) -> float:
    return number_format(name).bytes


def access_bytes(identity: str | None, dtype: str) -> float:
    """Of one load or store: 16 bytes in today's kernels, one element in the `scalar` ones of engines before 2025."""
    if identity not in IDENTITIES:
        raise InvalidInput(f"identity = {identity!r} must be one of {', '.join(str(name) for name in IDENTITIES if name)}, or left out")
    return element_bytes(dtype) if identity == "scalar" else VECTOR_BYTES


def operation(name: str, allowed: dict[str, Any], parameter: str = "op") -> Any:
    """The entry of `allowed` called `name`; an unknown one is the user's mistake."""
    if name not in allowed:
        raise InvalidInput(f"{parameter} = {name!r} must be one of {', '.join(allowed)}")
    return allowed[name]


def slices(numel: Numbers) -> Numbers:
    """Blocks of a flat tensor; a fraction of a block is a fraction of its work."""
    return numel / SLICE


def streaming_tasks(stream: Stream, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
    """One task per block; time is bytes at DRAM or L2 speed, unless they are few or costly to compute."""
    using, machine = streaming_constants(), constants()
    per_block = stream.read_bytes + stream.written_bytes
    least = stream.blocks * per_block + stream.shared_bytes
    read_again = stream.rereads * stream.read_bytes
    missed = stream.blocks * read_again * (1.0 - _found_again(stream, per_block, gpu))
    from_dram = least if protocol.cache == "cold" else least * (1.0 - hit_fraction(least, gpu))
    # Issue slots bind where accesses are small: such bytes weigh more on the way from and to L2.
    rate = vector_bytes_per_clock_per_sm(gpu)
    weight = maximum(1.0, rate / (using.scalar_accesses_per_clock_per_sm * stream.access_bytes))
    # Less than any kernel's launch and drain; a block that reduces holds its first row back by as much as a drain.
    launch_s, is_called = launch_seconds(gpu, machine), protocol.timer == "event"
    start_s = using.start_s - launch_s - (0.0 if stream.reduces else machine.drain_s)
    # Timed as a call, a second kernel comes as late as the host can launch it: 3.7 to 6.2 us (rows of linear layers with one and with two).
    further_s = (launch_s if is_called else using.start_s) * (stream.launches - 1.0)
    host_s = machine.host_event_s * (stream.host_calls - 1.0) if is_called else 0.0
    # Blocks finish together, but no row is faster than one SM; reductions pay that at their start.
    least_blocks = 0.0 if stream.reduces else 1.0
    return TaskSet(
        matrix_dtype="fp32",
        num_tasks=ceil(stream.blocks),
        least_flop=0.0 * least,
        least_bytes=least_from_dram(least, gpu, protocol.cache),
        least_port_bytes=least,
        vector_flop=stream.flop,
        special_ops=stream.special_ops,
        l2_bytes=(per_block + read_again) * weight,
        dram_bytes=from_dram + missed,
        busiest_tasks=maximum(stream.blocks / gpu.num_sms, least_blocks),
        rounds=0.0,
        resident=resident_blocks(stream.threads, gpu),
        dram_fraction=None if stream.reduces or gpu.dram_ecc == "inline" else machine.stream_fraction,
        l2_bytes_per_clock_per_sm=rate,
        fixed_s=start_s + further_s + host_s,
    )


def resident_blocks(threads: Numbers, gpu: GpuSpec) -> Any:
    """Blocks of `threads` that one SM holds at once."""
    slots = (gpu.max_warps_per_sm or 64) * gpu.warp_size
    return clip(slots / threads, 1.0, gpu.max_blocks_per_sm or 32)


def _found_again(stream: Stream, per_block: Numbers, gpu: GpuSpec) -> Any:
    """Share of second reads that the cache still answers: between two reads, all resident rows have been read and written."""
    return hit_fraction(minimum(stream.blocks, gpu.num_sms * resident_blocks(stream.threads, gpu)) * per_block, gpu, same_sm=True)
