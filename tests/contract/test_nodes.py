"""Every node file of the catalogue keeps its contract: its GPU exists, and its links are that GPU's."""

import pytest

from tilecast.errors import SpecError
from tilecast.hardware import default_node, gpu, gpu_ids, gpus, node, node_ids, nodes

REQUIRED = (
    "dgx-a100", "dgx-h100", "hgx-h200", "hgx-h20", "hgx-h800", "dgx-b200", "hgx-b300", "gb200-nvl72", "gb300-nvl72",
    "mi300x-oam-8", "mi325x-oam-8", "mi355x-oam-8", "pcie-8x-l40s", "pcie-8x-rtx-pro-6000-server", "pcie-4x-a40",
    "pcie-2x-rtx-6000-ada", "pcie-8x-a100", "pcie-8x-h100", "pcie-2x-rtx-4090", "pcie-8x-l4", "pcie-8x-l20",
)  # fmt: skip

every_node = pytest.mark.parametrize("box", tuple(nodes()), ids=lambda box: box.id)


def test_the_catalogue_holds_every_required_node():
    assert set(REQUIRED) <= set(node_ids())


@every_node
def test_a_node_answers_to_its_id_in_any_spelling(box):
    for spelling in (box.id.upper(), box.id.replace("-", "_"), box.id.replace("-", " ")):
        assert node(spelling) == box


@every_node
def test_the_gpu_of_a_node_is_catalogued_under_that_id(box):
    assert box.gpu in gpu_ids()


@every_node
def test_the_link_of_a_node_is_its_gpus(box):
    spec = gpu(box.gpu)
    if box.topology == "pcie":
        assert spec.link_kind is None
        assert (box.link_kind, box.link_bytes_per_s) == (f"pcie{spec.pcie_generation}", spec.pcie_bytes_per_s)
    else:
        assert (box.link_kind, box.link_bytes_per_s) == (spec.link_kind, spec.link_bytes_per_s)
    if spec.pcie_bytes_per_s is not None:
        assert box.pcie_bytes_per_s == spec.pcie_bytes_per_s


@every_node
def test_the_topology_decides_what_one_pair_gets(box):
    peers = box.num_gpus - 1
    expected = box.link_bytes_per_s / peers if box.topology == "mesh" else box.link_bytes_per_s
    assert box.pair_bytes_per_s == pytest.approx(expected)
    if box.topology in ("switch", "mesh"):
        assert gpu(box.gpu).link_peers == peers
    elif box.topology == "bridge":
        assert gpu(box.gpu).link_peers == 1
        assert box.num_gpus % 2 == 0


@every_node
def test_only_nvswitch_of_hopper_and_later_adds_in_the_switch(box):
    has_sharp = box.topology == "switch" and gpu(box.gpu).arch in ("hopper", "blackwell")
    assert box.reduces_in_switch == has_sharp


@every_node
def test_no_source_names_a_fact_that_the_node_lacks(box):
    assert all(getattr(box, fact) not in (None, False) for fact in box.sources)


@pytest.mark.parametrize("spec", tuple(gpus()), ids=lambda spec: spec.id)
def test_a_gpu_without_a_named_node_gets_a_default_one(spec):
    if spec.link_bytes_per_s is None and spec.pcie_bytes_per_s is None:
        assert spec.id == "gb10"  # the only part that stands alone
        with pytest.raises(SpecError, match="gb10 has neither a link nor PCIe"):
            default_node(spec)
        return
    box = default_node(spec)
    assert box.gpu == spec.id
    assert box.link_bytes_per_s == (spec.link_bytes_per_s or spec.pcie_bytes_per_s)
    assert 0 < box.pair_bytes_per_s <= box.link_bytes_per_s
    if spec.link_peers == 1:
        assert box.topology == "bridge"
