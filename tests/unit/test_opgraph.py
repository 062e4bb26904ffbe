"""Operator graphs: folding loses nothing, files come back as they were, letters stand for sizes, and memory is counted by hand."""

import json

import pytest

from tilecast.errors import InvalidInput, MissingData
from tilecast.workloads.opgraph import Node, OpGraph, Segment, TensorShape, folded, graph_from, load_graph, symbolic
from tilecast.workloads.recompute import recomputed


def tensor(*shape, dtype="fp32"):
    return TensorShape(dtype, shape)


def node(op="aten.mul", phase="forward", shape=(4, 8), frees=(), **more):
    return Node(op, phase, (tensor(*shape),), (tensor(*shape),), tuple(tensor(*each) for each in frees), **more)


def graph(segments, **more):
    return OpGraph(name="made", mode="training", segments=tuple(segments), parameters=((tensor(8, 8), 3),), **more)


@pytest.mark.parametrize(
    "names",
    ["", "a", "aa", "abab", "xabcabcabcy", "aabbaabb", "abcabdabcabd", "xxxxyxxxxy", "q" * 40 + "rs" * 30],
)
def test_unfolding_gives_back_what_was_folded(names):
    nodes = [node(f"aten.{name}") for name in names]
    segments = folded(nodes)
    assert [each for segment in segments for _ in range(segment.repeat) for each in segment.nodes] == nodes


def test_thirty_six_equal_layers_fold_into_one():
    layer = [node("aten.mm"), node("aten.add"), node("aten.tanh")]
    segments = folded([node("aten.embedding"), *layer * 36, node("aten.mm", shape=(4, 100))])
    assert [(segment.repeat, len(segment.nodes)) for segment in segments] == [(1, 1), (36, 3), (1, 1)]


def test_layers_that_differ_in_one_size_do_not_fold():
    assert len(folded([node(shape=(4, 8)), node(shape=(4, 9))])[0].nodes) == 2


def test_a_saved_graph_comes_back_equal(tmp_path):
    made = graph(
        [Segment(1, (node(is_view=True),)), Segment(7, (node(frees=((4, 8),), options=(("dim", -1), ("stride", (1, 2)))),))],
        batch=4, seq=8, buffers_bytes=12, inputs_bytes=64, torch_version="2.13.0", notes=("a note",), frozen=((tensor(5, 5), 2),),
    )  # fmt: skip
    made.save(tmp_path / "made.graph.json")
    assert load_graph(tmp_path / "made.graph.json") == made


def test_an_expanded_tensor_counts_what_lies_in_memory():
    assert TensorShape("bf16", (8, 16, 32), (1, 16, 32)).nbytes == 16 * 32 * 2
    assert TensorShape("bf16", (8, 16, 32), (1, 16, 32)).numel == 8 * 16 * 32


def test_memory_is_what_was_allocated_and_not_yet_freed():
    # 4 x 8 fp32 is 128 bytes. Three layers keep one tensor each; the backward pass frees one at a time while it holds a gradient.
    made = graph(
        [
            Segment(3, (node(), node(frees=((4, 8),)))),  # 256 at most in a layer, 128 stay
            Segment(1, (node(phase="loss"),)),
            Segment(3, (node(phase="backward", frees=((4, 8), (4, 8))),)),
        ]
    )
    assert made.live_bytes() == {"forward": 2 * 128 + 256, "loss": 4 * 128, "backward": 5 * 128, "kept": 4 * 128}


def test_many_repetitions_are_counted_like_a_few():
    layers = Segment(9, (node(), node(frees=((4, 8),))))
    unfolded = graph([Segment(1, layers.nodes)] * 9)
    assert graph([layers]).live_bytes() == unfolded.live_bytes()


def test_one_file_serves_every_batch_and_length():
    def at(batch, seq):
        return graph([Segment(2, (node(shape=(batch * seq, 64)), node(shape=(12 * batch, seq, seq))))], inputs_bytes=8 * batch * seq)

    table = symbolic({point: at(*point) for point in ((2, 5), (3, 5), (2, 7), (4, 11))})
    assert ["fp32", ["12*B", "S", "S"]] in json.loads(json.dumps(table))["tensors"]
    found = graph_from(table, "made", B=6, S=100)
    assert found.segments == at(6, 100).segments
    assert (found.batch, found.seq, found.inputs_bytes) == (6, 100, 8 * 600)


def test_a_size_that_is_no_product_is_refused():
    with pytest.raises(InvalidInput, match="no product"):
        symbolic({(b, 5): graph([Segment(1, (node(shape=(b + 1, 64)),))]) for b in (2, 3, 4)})


def test_a_graph_whose_operators_change_is_refused():
    with pytest.raises(InvalidInput, match="changes with the batch"):
        symbolic({(2, 5): graph([Segment(1, (node(),))]), (3, 5): graph([Segment(1, (node("aten.add"),))])})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "other"}, "holds no operator graph"),
        ({"tensors": [["fp32", [4, -8]]]}, "must be a whole number"),
        ({"tensors": [["fp32", [4, float("nan")]]]}, "must be a whole number"),
        ({"tensors": [["fp13", [4, 8]]]}, "unknown dtype 'fp13'"),
        ({"segments": [{"repeat": 0, "nodes": []}]}, "at least 1"),
        ({"segments": [{"repeat": 1, "nodes": [{"op": "aten.mm", "phase": "sideways", "in": [], "out": []}]}]}, "phase = 'sideways'"),
        (
            {"segments": [{"repeat": 1, "nodes": [{"op": "aten.mm", "phase": "forward", "in": [9], "out": []}]}]},
            "no complete operator graph",
        ),
        ({"segments": [{"repeat": 1, "nodes": [{"op": "aten.mm", "phase": "forward", "in": [0]}]}]}, "aten.mm has no 'out'"),
        ({"segments": [{"repeat": 1, "nodes": [{"op": "aten.mm", "phase": "forward", "in": [-1], "out": [0]}]}]}, "-1 must be a place"),
        (
            {"segments": [{"repeat": 1, "nodes": [{"op": "a", "phase": "forward", "in": [0], "out": [0], "options": {"b": {}}}]}]},
            "no complete operator graph",
        ),
        ({"parameters": 3}, "no complete operator graph"),
        ({"mode": "dreaming"}, "mode = 'dreaming' must be one of"),
        ({"batch": "many"}, "'many' must be a whole number"),
    ],
)
def test_a_damaged_graph_is_one_sentence(change, said):
    table = graph([Segment(1, (node(),))]).to_dict() | change
    with pytest.raises(InvalidInput, match=said) as problem:
        graph_from(table)
    assert "\n" not in str(problem.value)


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(InvalidInput, match=r"cannot write .*none"):
        graph([Segment(1, (node(),))]).save(tmp_path / "none" / "made.graph.json")


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(MissingData, match="cannot read"):
        load_graph(tmp_path / "none.graph.json")
    (tmp_path / "bad.graph.json").write_text("{")
    with pytest.raises(InvalidInput, match="not valid JSON"):
        load_graph(tmp_path / "bad.graph.json")


def test_recomputed_layers_keep_their_result_alone_and_run_twice():
    # A layer makes a wide and a narrow tensor and keeps both; its backward pass frees both.
    wide, narrow = (4, 64), (4, 8)
    forward = Segment(10, (node("aten.mm", shape=wide), node("aten.add", shape=narrow)))
    backward = Segment(10, (node("aten.mm", "backward", narrow, frees=(narrow, wide, narrow)),))
    plain = graph([forward, backward])
    lean = graph(recomputed(plain.segments), recompute=True)
    assert plain.live_bytes()["kept"] == 10 * (1024 + 128)
    assert lean.live_bytes()["kept"] == 10 * 128
    assert lean.live_bytes()["backward"] < plain.live_bytes()["backward"]
    assert sum(each.op == "aten.mm" and each.phase == "backward" for each in lean.nodes()) == 20
    ends = [sum(each.allocated_bytes - each.freed_bytes for each in one.nodes()) for one in (plain, lean)]
    assert ends[0] == ends[1]


def test_a_model_without_layers_cannot_be_recomputed():
    with pytest.raises(InvalidInput, match="list of equal layers"):
        recomputed((Segment(1, (node(), node("aten.add", "backward"))),))
