"""Collectives: volumes by hand, the algorithm that wins, and one sentence for every mistake."""

from dataclasses import replace

import numpy as np
import pytest

from tilecast import hardware
from tilecast.errors import InvalidInput, SpecError, UnknownName
from tilecast.execution import Protocol, constants
from tilecast.kernels.base import execution_of
from tilecast.kernels.collectives import AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter, SendRecv, collective_constants, node_of

H100, A100, H20, MI300X = (hardware.gpu(name) for name in ("h100-sxm", "a100-sxm-80gb", "h20", "mi300x"))
GRAPH = Protocol(timer="graph")
GIGABYTE = 1_000_000_000


def bound_s(kernel, gpu=A100):
    return float(execution_of(kernel, gpu, GRAPH).bound_s[0])


def analytic_s(kernel, gpu=A100, protocol=GRAPH):
    return float(execution_of(kernel, gpu, protocol).analytic_s[0])


@pytest.mark.parametrize(
    ("collective", "volume"),
    [(AllReduce, 2 * 7 / 8), (AllGather, 7 / 8), (ReduceScatter, 7 / 8), (AllToAll, 7 / 8), (Broadcast, 1.0)],
)
def test_volume_over_the_busiest_link(collective, volume):
    # eight GPUs, 450 GB/s each way, no adding in the switch
    kernel = collective(bytes=GIGABYTE, num_gpus=8, node="dgx-a100", link_bytes_per_s=450e9)
    assert bound_s(kernel) == pytest.approx(volume * 1e9 / 450e9)


def test_a_switch_that_adds_moves_each_byte_once():
    kernel = AllReduce(bytes=GIGABYTE, num_gpus=8, node="dgx-h100")
    assert bound_s(kernel, H100) == pytest.approx(1e9 / 450e9)
    assert execution_of(kernel, H100, GRAPH).variant[0] == "switch"
    assert execution_of(AllReduce(bytes=GIGABYTE, num_gpus=8), A100, GRAPH).variant[0] == "ring"


def test_small_messages_of_engines_take_one_shot():
    small, large = (AllReduce(bytes=size, num_gpus=4, identity="custom") for size in (1 << 14, 1 << 28))
    assert execution_of(small, A100, GRAPH).variant[0] == "one-shot"
    assert execution_of(large, A100, GRAPH).variant[0] == "ring"
    assert analytic_s(small) < analytic_s(AllReduce(bytes=1 << 14, num_gpus=4))


@pytest.mark.parametrize(
    ("num_gpus", "kilobytes", "way"),
    [(2, 8192, "one-shot"), (4, 511, "one-shot"), (4, 512, "two-shot"), (8, 255, "one-shot"), (8, 256, "two-shot"), (8, 8192, "two-shot")],
)
def test_engines_change_their_kernel_at_fixed_sizes(num_gpus, kilobytes, way):
    kernel = AllReduce(bytes=kilobytes * 1024, num_gpus=num_gpus, identity="custom")
    assert execution_of(kernel, H100, GRAPH).variant[0] == way


@pytest.mark.parametrize(
    ("gpu", "num_gpus", "kilobytes", "way"),
    [("h100-sxm", 8, 255, "one-shot"), ("h100-sxm", 8, 256, "symmetric"), ("h100-sxm", 4, 1024, "two-shot"),
     ("b200-sxm", 8, 512, "two-shot"), ("b200-sxm", 8, 1024, "symmetric"), ("a100-sxm-80gb", 8, 1024, "two-shot")],
)  # fmt: skip
def test_eight_gpus_of_vllm_sum_in_their_switch(gpu, num_gpus, kilobytes, way):
    kernel = AllReduce(bytes=kilobytes * 1024, num_gpus=num_gpus, identity="custom", engine="vllm")
    assert execution_of(kernel, hardware.gpu(gpu), GRAPH).variant[0] == way


def test_vllms_sums_of_eight_take_what_was_measured():
    # Medians of vLLM's rows in aiconfigurator-core 0.12.0 on H100, in a CUDA graph: 256 and 512 KiB, 1, 2, 4 and 8 MiB.
    kernel = AllReduce(bytes=[2**10 * size for size in (256, 512, 1024, 2048, 4096, 8192)], num_gpus=8, identity="custom", engine="vllm")
    ratio = 1e6 * execution_of(kernel, H100, GRAPH).analytic_s / np.array([10.8, 12.0, 15.0, 19.4, 30.8, 50.7])
    assert (abs(np.log(ratio)) < 0.2).all()


def test_an_engines_kernel_by_hand():
    # One hop, then 7 x 128 KiB read by 36 x 512 threads of 16 bytes each, which come back after a hop: 3.6 us.
    using = collective_constants()
    kernel = AllReduce(bytes=128 * 1024, num_gpus=8, identity="custom")
    moved_s = 7 * 128 * 1024 * using.step_s / (36 * 512 * 16)
    start_s = constants().launch_s + constants().launch_cycles / H100.boost_clock_hz
    assert analytic_s(kernel, H100) == pytest.approx(start_s + using.step_s + moved_s)
    # TensorRT-LLM's threads ask for more at once: the link's own rate.
    assert analytic_s(replace(kernel, engine="trtllm"), H100) < analytic_s(kernel, H100)


@pytest.mark.parametrize(("kib", "num_gpus", "own"), [(512, 8, True), (2048, 8, False), (1024, 4, True), (8192, 4, False), (4096, 2, True)])
def test_tensorrt_llm_sums_in_one_step_while_nccl_would_take_longer(kib, num_gpus, own):
    kernel = AllReduce(bytes=kib * 1024, num_gpus=num_gpus, identity="custom", engine="trtllm")
    found = execution_of(kernel, H100, GRAPH)
    assert (found.variant[0] == "one-shot") is own
    assert found.analytic_s[0] <= analytic_s(replace(kernel, identity="nccl"), H100, GRAPH)


RACK_US = {  # medians of rows of GB300 in aiconfigurator-core 0.12.0 (Apache-2.0), in a CUDA graph: 1, 2, 8, 64 and 512 MiB
    ("trtllm", 8): (7.6, 9.9, 26.0, 181.4, 1419.9), ("trtllm", 16): (8.3, 13.0, 36.0, 264.8, 2071.2),
    ("vllm", 16): (52.0, 52.6, 97.2, 286.3, 1617.8), ("sglang", 16): (52.1, 53.5, 85.4, 279.1, 1580.8),
}  # fmt: skip


@pytest.mark.parametrize(("engine", "num_gpus"), RACK_US)
def test_sums_across_the_trays_of_a_rack_take_what_was_measured(engine, num_gpus):
    # TensorRT-LLM's took 16.4 to 31.9 us of 1 MiB: it was taken for NCCL on 16 GPUs, and on eight for a kernel that tells every peer.
    kernel = AllReduce(bytes=[2**20 * size for size in (1, 2, 8, 64, 512)], num_gpus=num_gpus, identity="custom", engine=engine)
    found = execution_of(kernel, hardware.gpu("gb300"), GRAPH)
    ratio = 1e6 * found.analytic_s / np.array(RACK_US[engine, num_gpus])
    assert (abs(np.log(ratio[2:])) < 0.4).all() and (engine != "trtllm" or (abs(np.log(ratio)) < 0.3).all())
    assert set(found.variant) == {"two-shot"} if engine == "trtllm" else "switch" not in found.variant


def test_over_pcie_only_pairs_run_an_engines_kernel():
    rtx = hardware.gpu("rtx-pro-6000-server")
    pair, four = (AllReduce(bytes=1 << 17, num_gpus=number, identity="custom") for number in (2, 4))
    assert execution_of(pair, rtx, GRAPH).variant[0] == "one-shot"
    assert execution_of(four, rtx, GRAPH).variant[0] in ("ring", "tree")


def test_a_box_whose_links_were_measured_is_as_fast_as_measured():
    ada = hardware.gpu("rtx-6000-ada")
    pair = AllReduce(bytes=10**9, num_gpus=2, node="pcie-2x-rtx-6000-ada")
    assert analytic_s(pair, ada) == pytest.approx(1e9 / 11.3e9, rel=0.01)
    assert bound_s(pair, ada) == pytest.approx(1e9 / 32e9)
    assert analytic_s(replace(pair, node=None), ada) < 0.6 * analytic_s(pair, ada)  # a common box, unless it is named


MEASURED_US = {  # medians of SGLang's rows in aiconfigurator-core 0.12.0 (Apache-2.0), in a CUDA graph: 16, 64, 256 KiB, 1 MiB and 4 MiB
    ("a100-sxm-80gb", 2): (5.5, 5.9, 6.8, 10.9, 25.8), ("a100-sxm-80gb", 4): (6.0, 6.6, 9.9, 18.9, 41.6),
    ("a100-sxm-80gb", 8): (6.7, 8.5, 17.9, 21.8, 45.1), ("h100-sxm", 2): (4.6, 4.7, 4.7, 7.5, 18.7),
    ("h100-sxm", 4): (4.2, 5.2, 7.3, 12.8, 30.5), ("h100-sxm", 8): (4.7, 5.7, 12.6, 17.4, 34.3),
    ("rtx-pro-6000-server", 2): (12.8, 14.4, 25.8, 60.6, 201.3),
}  # fmt: skip


@pytest.mark.parametrize(("gpu", "num_gpus"), MEASURED_US)
def test_short_messages_take_what_was_measured(gpu, num_gpus):
    sizes = [2**10 * kilobytes for kilobytes in (16, 64, 256, 1024, 4096)]
    kernel = AllReduce(bytes=sizes, num_gpus=num_gpus, identity="custom", engine="sglang")
    ratio = 1e6 * execution_of(kernel, hardware.gpu(gpu), GRAPH).analytic_s / np.array(MEASURED_US[gpu, num_gpus])
    assert (abs(np.log(ratio)) < 0.25).all() and abs(np.log(ratio)).mean() < 0.16


def test_two_nodes_are_bound_by_their_adapters():
    # 2 x 1/2 of 1 GB, an eighth through each of eight 25 GB/s adapters: 5 ms; inside 2 x 15/16 GB at 300 GB/s: 6.25 ms
    kernel = AllReduce(bytes=GIGABYTE, num_gpus=16, node="dgx-a100")
    analysis = execution_of(kernel, A100, GRAPH)
    assert analysis.demand_s["network"][0] == pytest.approx(1e9 / 8 / 25e9)
    assert analysis.demand_s["link"][0] == pytest.approx(2 * 15 / 16 * 1e9 / 300e9)
    # with one GPU in each node all of it crosses one adapter
    apart = AllReduce(bytes=GIGABYTE, num_gpus=2, gpus_per_node=1, node="dgx-a100")
    assert bound_s(apart) == pytest.approx(1e9 / 25e9)
    assert bound_s(SendRecv(bytes=GIGABYTE, num_gpus=2, gpus_per_node=1, node="dgx-a100")) == pytest.approx(1e9 / 25e9)


def bus_bytes_per_s(kernel, gpu, passes):
    """What NCCL's tests call bus bandwidth."""
    return passes * (kernel.num_gpus - 1) / kernel.num_gpus * kernel.bytes / analytic_s(kernel, gpu)


def test_rings_and_trees_fill_the_adapters_between_boxes():
    # NVIDIA's own: eight adapters of DGX A100 192 GB/s (NVIDIA/nccl#812), 46 to 48 GB/s each of DGX H100 (NVIDIA/nccl-tests#290).
    for num_gpus in (16, 64):
        kernel = AllReduce(bytes=8 * GIGABYTE, num_gpus=num_gpus, node="dgx-a100")
        assert bus_bytes_per_s(kernel, A100, 2) == pytest.approx(192e9, rel=0.06)
    assert bus_bytes_per_s(AllReduce(bytes=8 * GIGABYTE, num_gpus=64, node="dgx-h100"), H100, 2) == pytest.approx(8 * 47e9, rel=0.06)
    assert bus_bytes_per_s(AllReduce(bytes=8 * GIGABYTE, num_gpus=16, node="dgx-h100"), H100, 2) == pytest.approx(470e9, rel=0.12)


@pytest.mark.parametrize("collective", [AllGather, ReduceScatter])
def test_a_ring_passes_everything_through_every_adapter(collective):
    # 15/16 of 1 GB, an eighth through each of eight 25 GB/s adapters: as much as from four boxes, though half of it could do.
    kernel = collective(bytes=8 * GIGABYTE, num_gpus=16, node="dgx-a100")
    assert bus_bytes_per_s(kernel, A100, 1) == pytest.approx(8 * 25e9 * 0.94, rel=0.02)
    assert bound_s(kernel) == pytest.approx(max(8 / 2 / 8 / 25, 8 * 15 / 16 / 300))
    assert analytic_s(replace(kernel, num_gpus=32)) == pytest.approx(analytic_s(kernel) * 31 / 30, rel=0.01)


@pytest.mark.parametrize(("gpu", "node", "told_us"), [(H100, "dgx-h100", 18), (A100, "dgx-a100", 24)])
def test_a_hop_between_boxes_takes_longer(gpu, node, told_us):
    # Vidur's medians of 2 to 20 KB; inside a box 6 and 10 us
    near, far = (analytic_s(SendRecv(bytes=1 << 13, num_gpus=2, gpus_per_node=each, node=node), gpu) for each in (2, 1))
    assert 10e-6 < far - near < 15e-6 and far == pytest.approx(told_us * 1e-6, rel=0.4)


def test_fewer_peers_of_a_mesh_mean_fewer_links():
    # 8 x MI300X: 64 GB/s to each peer
    assert bound_s(SendRecv(bytes=GIGABYTE, num_gpus=2), MI300X) == pytest.approx(1e9 / 64e9)
    assert bound_s(AllGather(bytes=GIGABYTE, num_gpus=8), MI300X) == pytest.approx(7 / 8 * 1e9 / 448e9)


def test_bridges_join_pairs_only():
    a40 = hardware.gpu("a40")
    assert bound_s(SendRecv(bytes=GIGABYTE, num_gpus=2, node="pcie-4x-a40"), a40) == pytest.approx(1e9 / 56.25e9)
    assert bound_s(AllGather(bytes=GIGABYTE, num_gpus=4, node="pcie-4x-a40"), a40) == pytest.approx(0.75 * 1e9 / 32e9)


def test_the_catalogue_knows_the_box_of_a_gpu():
    assert node_of(H100, None).id == "dgx-h100"
    assert node_of(hardware.gpu("l40"), None).topology == "pcie"
    assert node_of(hardware.gpu("rtx-4090"), None).num_gpus == 8  # the catalogued pair has to be named
    faster = hardware.gpu("h100-sxm", {"link_bytes_per_s": 900e9})
    assert node_of(faster, None).link_bytes_per_s == 900e9


def test_boxes_of_blackwell_have_the_adapters_their_guides_name():
    # NVIDIA's user guides: DGX B200 and GB200 have one ConnectX-7 of 400 Gbit/s a GPU, B300 and GB300 one ConnectX-8 of 800
    told = {name: hardware.node(name).network_bytes_per_s for name in ("dgx-b200", "gb200-nvl72", "hgx-b300", "gb300-nvl72")}
    assert told == {"dgx-b200": 50e9, "gb200-nvl72": 50e9, "hgx-b300": 100e9, "gb300-nvl72": 100e9}


def test_timers_differ_by_what_they_contain():
    kernel, engine = AllReduce(bytes=1 << 20, num_gpus=8), AllReduce(bytes=1 << 20, num_gpus=8, identity="custom")
    assert analytic_s(kernel, protocol=Protocol("profiler")) > analytic_s(kernel)  # waits for the last rank
    assert analytic_s(engine, protocol=Protocol("event")) > analytic_s(engine) + 20e-6  # the host, and a copy


@pytest.mark.parametrize(
    ("kernel", "gpu", "error", "told"),
    [
        (AllReduce(bytes=8, num_gpus=1), A100, InvalidInput, "num_gpus = 1 must be at least 2"),
        (AllReduce(bytes=8, num_gpus=8, gpus_per_node=16, node="dgx-a100"), A100, None, None),
        (AllReduce(bytes=8, num_gpus=16, gpus_per_node=16, node="dgx-a100"), A100, InvalidInput, "more than the 8 GPUs of dgx-a100"),
        (AllReduce(bytes=8, num_gpus=12, node="dgx-a100"), A100, InvalidInput, "num_gpus = 12 must be a multiple of the 8 GPUs"),
        (AllReduce(bytes=8, num_gpus=16, node="hgx-h20"), H20, SpecError, "network is not known; give network_bytes_per_s"),
        (AllReduce(bytes=8, num_gpus=8, node="dgx-z100"), A100, UnknownName, "unknown node 'dgx-z100'"),
        (AllReduce(bytes=-8, num_gpus=8), A100, InvalidInput, "bytes = -8 must be a whole number of at least 1"),
        (AllReduce(bytes=8, num_gpus=8, identity="gloo"), A100, InvalidInput, "identity = 'gloo' must be one of nccl, custom"),
        (AllReduce(bytes=8, num_gpus=8, link_bytes_per_s=-1.0), A100, InvalidInput, "link_bytes_per_s = -1.0 must be a number above 0"),
    ],
)
def test_mistakes_are_one_sentence(kernel, gpu, error, told):
    if error is None:  # a node that is not full is no mistake
        assert analytic_s(kernel, gpu) > 0
        return
    with pytest.raises(error, match=told) as raised:
        execution_of(kernel, gpu, GRAPH)
    assert "\n" not in str(raised.value)
