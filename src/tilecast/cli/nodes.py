"""`tilecast nodes`: the boxes and racks of the catalogue."""

import click

from tilecast import hardware, units
from tilecast.cli.output import command_line, emit, output_options
from tilecast.hardware.node_spec import TOPOLOGIES
from tilecast.report import Grid, Report, versions


@click.command()
@click.option("--gpu", help="Only nodes of this GPU.")
@output_options
def command(gpu: str | None, **output: bool) -> None:
    """List the catalogued nodes: GPUs, topology, link and network rates (per GPU, one direction)."""
    emit(report(gpu), **output)


def report(gpu: str | None) -> Report:
    nodes = [node for node in hardware.nodes() if gpu is None or node.gpu == hardware.gpu(gpu).id]
    if gpu is not None and not nodes:
        nodes = [hardware.default_node(hardware.gpu(gpu))]
    rows = [
        (
            node.id,
            f"{node.num_gpus} x {node.gpu}",
            node.topology,
            f"{units.human('_bytes_per_s', node.link_bytes_per_s)} {node.link_kind}",
            units.human("_bytes_per_s", node.pair_bytes_per_s),
            units.human("_bytes_per_s", node.network_bytes_per_s) if node.network_bytes_per_s else "-",
        )
        for node in nodes
    ]
    used = sorted({node.topology for node in nodes})
    grids = [
        Grid(
            columns=("id", "GPUs", "topology", "link", "between a pair", "network"),
            rows=rows,
            right=frozenset({"link", "between a pair", "network"}),
            spare=("network", "between a pair"),
        ),
        Grid(title="Topologies", columns=("topology", "meaning"), rows=[(name, TOPOLOGIES[name]) for name in used]),
    ]
    widest = max(nodes, key=lambda node: node.num_gpus)
    return Report(
        answer=f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}; the largest is {widest.id} with {widest.num_gpus} GPUs.",
        grids=grids,
        payload=[node.to_dict() | {"versions": versions()} for node in nodes],
        records=[node.to_dict() | {"versions": versions()} for node in nodes],
        python=f"import tilecast\n[node for node in tilecast.nodes(){f' if node.gpu == {hardware.gpu(gpu).id!r}' if gpu else ''}]",
        command=command_line("nodes", gpu=gpu),
    )
