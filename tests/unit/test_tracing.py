"""Real modules traced on the CPU: operators, FLOP and backward passes as PyTorch itself counts them."""

import threading
from collections import Counter

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch: pip install 'tilecast[torch]'")

import tilecast  # noqa: E402
from tilecast.errors import InvalidInput  # noqa: E402
from tilecast.workloads import step_models  # noqa: E402
from tilecast.workloads.aten import matrix_flop  # noqa: E402
from tilecast.workloads.stages import layers  # noqa: E402
from tilecast.workloads.tracing import capture  # noqa: E402
from tilecast.workloads.tracing.bundled import traced_model  # noqa: E402

nn, F = torch.nn, torch.nn.functional


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        parts = (each.view(batch, tokens, self.heads, -1).transpose(1, 2) for each in self.qkv(self.norm_1(x)).chunk(3, dim=-1))
        query, key, value = parts
        weights = F.softmax(query @ key.transpose(-1, -2) / 8.0, dim=-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.relu(self.up(self.norm_2(x))))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.second(F.relu(self.norm(self.first(x)))).mean((2, 3)))


class Stacked(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


CASES = {
    "mlp": (Mlp, lambda: torch.zeros(16, 32)),
    "transformer block": (Block, lambda: torch.zeros(2, 6, 32)),
    "conv net": (ConvNet, lambda: torch.zeros(2, 3, 8, 8)),
    "convolutions there and back": (
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.ConvTranspose2d(8, 4, 4, stride=2)),
        lambda: torch.zeros(2, 4, 9, 9),
    ),
    "six equal blocks": (lambda: Stacked(6), lambda: torch.zeros(2, 6, 32)),
}


def operators(graph, phases=("forward", "loss", "backward")):
    return Counter(node.op for node in graph.nodes() if node.phase in phases and not node.is_view)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_flop_are_those_that_pytorch_counts(name, mode):
    from torch.utils.flop_counter import FlopCounterMode

    build, inputs = CASES[name]
    module, example = build(), inputs()
    graph = tilecast.trace(module, (example,), mode=mode)
    counter = FlopCounterMode(display=False)
    with counter, torch.set_grad_enabled(mode == "training"):
        result = module.train(mode == "training")(example)
        if mode == "training":
            result.sum().backward()
    assert sum(matrix_flop(node) * times for node, times in graph.counted().items()) == counter.get_total_flops()


@pytest.mark.parametrize("name", CASES)
def test_the_backward_pass_runs_the_operators_that_autograd_runs(name):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = Counter()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen[str(function.overloadpacket)] += 1
            return function(*args, **(kwargs or {}))

    build, inputs = CASES[name]
    module, example = build(), inputs()
    graph = tilecast.trace(module, (example,), mode="training")
    loss = module(example).sum()
    with Recorder() as recorder:
        loss.backward()
    traced = operators(graph, ("backward",))
    compared = [op for op in recorder.seen if op in traced or op.split(".")[1] in ("mm", "bmm", "sum", "convolution_backward")]
    assert {op: traced[op] for op in compared} == {op: recorder.seen[op] for op in compared}
    assert set(traced) - set(recorder.seen) <= {"aten.empty_like", "aten.scalar_tensor"}


def test_an_inference_graph_holds_what_eager_pytorch_launches():
    graph = tilecast.trace(Mlp(), (torch.zeros(16, 32),))
    assert [node.op for node in graph.nodes() if not node.is_view] == ["aten.addmm", "aten.gelu", "aten.addmm"]
    assert graph.num_parameters == 32 * 64 + 64 + 64 * 8 + 8
    assert graph.inputs_bytes == 16 * 32 * 4


def test_dropout_runs_in_training_alone():
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))
    assert "aten.native_dropout" not in operators(tilecast.trace(module, (torch.zeros(4, 8),)))
    assert "aten.clone" not in operators(tilecast.trace(module, (torch.zeros(4, 8),)))
    assert operators(tilecast.trace(module, (torch.zeros(4, 8),), mode="training"))["aten.native_dropout"] == 1


@pytest.mark.parametrize(
    ("module", "shape", "backward"),
    [
        (nn.Sequential(nn.Linear(8, 8), nn.SiLU()), (4, 8), {"aten.silu_backward": 1, "aten.mm": 1, "aten.sum": 1}),
        (
            nn.Sequential(nn.Conv2d(3, 3, 1), nn.Upsample(scale_factor=2, mode="bilinear")),
            (2, 3, 8, 8),
            {"aten.upsample_bilinear2d_backward": 1, "aten.convolution_backward": 1},
        ),
        (
            nn.Sequential(nn.Conv2d(3, 3, 1), nn.Upsample(scale_factor=2)),
            (2, 3, 8, 8),
            {"aten.upsample_nearest2d_backward": 1, "aten.convolution_backward": 1},
        ),
    ],
)
def test_what_is_one_kernel_is_not_taken_apart(module, shape, backward):
    graph = tilecast.trace(module, (torch.zeros(shape),), mode="training")
    assert operators(graph, ("backward",)) == backward
    assert not tilecast.step(graph, "l4").unmodelled
    # And PyTorch is as it was.
    kernels = torch.ops.aten.upsample_bilinear2d.vec.py_kernels
    assert torch._C.DispatchKey.CompositeImplicitAutograd in kernels
    assert torch._C.DispatchKey.CompositeImplicitAutograd not in torch.ops.aten.silu_backward.default.py_kernels


def test_fused_attention_drops_out_itself():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(32, 32)

        def forward(self, x):
            x = self.up(x)
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1 if self.training else 0.0, is_causal=True)

    graph = tilecast.trace(Dropping(), (torch.zeros(2, 4, 8, 32),), mode="training")
    found = [node for node in graph.nodes() if "scaled_dot_product" in node.op]
    assert [(node.phase, dict(node.options)["is_causal"]) for node in found] == [("forward", True), ("backward", True)]
    assert not {"aten.bmm", "aten.native_dropout"} & set(operators(graph))


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_decoder_may_look_at_a_shorter_text(mode):
    layer = nn.TransformerDecoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    loss = {"loss": lambda made: made.sum()} if mode == "training" else {}
    graph = tilecast.trace(layer, (torch.zeros(2, 64, 64), torch.zeros(2, 32, 64)), mode=mode, **loss)
    assert any("attention" in each.op and each.inputs[-1].shape != each.inputs[0].shape for each in graph.nodes())
    assert tilecast.step(graph, "h100-sxm").step_s.median > 0


def test_a_model_that_ends_in_a_norm_has_a_forward_pass():
    graph = tilecast.trace(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), (torch.zeros(4, 8),), mode="training")
    assert operators(graph, ("forward",)) == {"aten.addmm": 1, "aten.native_layer_norm": 1}


def test_the_loss_is_told_apart_from_the_forward_pass():
    def loss(logits):
        return F.cross_entropy(logits, torch.zeros(16, dtype=torch.int64))

    graph = tilecast.trace(Mlp(), (torch.zeros(16, 32),), mode="training", loss=loss)
    assert "aten._log_softmax" in operators(graph, ("loss",))
    assert operators(graph, ("forward",)) == {"aten.addmm": 2, "aten.gelu": 1}


def test_a_module_may_return_its_loss():
    class Learning(Mlp):
        def forward(self, x, labels):
            logits = super().forward(x)
            return F.cross_entropy(logits, labels), logits

    graph = tilecast.trace(Learning(), {"x": torch.zeros(16, 32), "labels": torch.zeros(16, dtype=torch.int64)}, mode="training")
    assert "aten._log_softmax" in operators(graph, ("loss",))
    assert operators(graph, ("forward",)) == {"aten.addmm": 2, "aten.gelu": 1}


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_module_of_hugging_face_is_traced_without_weights(mode):
    transformers = pytest.importorskip("transformers", reason="needs the extra hf: pip install 'tilecast[hf]'")
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=6, num_attention_heads=4, vocab_size=99)
    tokens = torch.zeros(2, 16, dtype=torch.int64, device="meta")
    with torch.device("meta"):
        module = transformers.LlamaForCausalLM(config)  # keeps a cache unless it is told otherwise
    graph = tilecast.trace(module, {"input_ids": tokens, **({"labels": tokens} if mode == "training" else {})}, mode=mode)
    # Six layers of seven products, and the head; each has two gradients.
    assert sum(node.op == "aten.mm" for node in graph.nodes()) == (3 if mode == "training" else 1) * (6 * 7 + 1)
    assert graph.num_parameters == sum(weight.numel() for weight in module.parameters())
    # Texts of one length need no mask, as when it runs: attention is causal, and nothing is checked or copied for it.
    assert {dict(node.options)["is_causal"] for node in graph.nodes() if "attention" in node.op} == {True}
    assert not [node.op for node in graph.nodes() if node.op in ("aten.where", "aten.cumsum", "aten._assert_tensor_metadata")]


def test_what_the_forward_pass_keeps_is_what_autograd_saves():
    # Layer by layer: the input is the caller's; gelu's input (16 x 64) and its result, which the second product reads, are kept; the
    # sum keeps nothing and its result is one number; the result of 16 x 8 is the caller's until the end.
    graph = tilecast.trace(Mlp(), (torch.zeros(16, 32),), mode="training")
    assert graph.live_bytes()["kept"] == (16 * 64 + 16 * 64 + 16 * 8 + 1) * 4


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(512, 512), nn.Linear(512, 512)

    def forward(self, rows):
        return torch.cond(rows.sum() > 0, lambda rows: self.first(rows), lambda rows: self.second(self.first(rows).relu()), (rows,))


def test_a_condition_costs_its_dearest_branch():
    # Two linear layers of 512 x 512 on 256 rows: 2 x 2 x 256 x 512 x 512 FLOP. Backwards three products (of the first rows there is no
    # gradient), and the first layer again, as nothing of a branch is kept.
    graphs = {mode: tilecast.trace(Branching(), (torch.zeros(256, 512),), mode=mode, **({"loss": torch.sum} if mode == "training" else {}))
              for mode in ("inference", "training")}  # fmt: skip
    linear = 2 * 256 * 512 * 512
    assert sum(matrix_flop(each) for each in graphs["inference"].nodes()) == 2 * linear
    assert sum(matrix_flop(each) for each in graphs["training"].nodes()) == (2 + 3 + 1) * linear
    for graph in graphs.values():
        assert "cond" not in {each.op for each in graph.nodes()}
        assert not tilecast.step(graph, "h100-sxm").unmodelled


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_flex_attention_is_fused_attention(mode):
    from torch.nn.attention.flex_attention import flex_attention

    class Flexible(nn.Module):
        def __init__(self):
            super().__init__()
            self.projection = nn.Linear(64, 64)

        def forward(self, rows):
            rows = self.projection(rows)
            return self.mixed(rows)

    class Flex(Flexible):
        def mixed(self, rows):
            return flex_attention(rows, rows, rows)

    class Plain(Flexible):
        def mixed(self, rows):
            return nn.functional.scaled_dot_product_attention(rows, rows, rows)

    given = torch.zeros(1, 8, 4096, 64, dtype=torch.bfloat16)
    loss = {"loss": torch.sum} if mode == "training" else {}
    flexible, plain = (
        tilecast.step(tilecast.trace(kind().to(torch.bfloat16), (given,), mode=mode, **loss), "h100-sxm") for kind in (Flex, Plain)
    )
    for family in ("attention_forward", "attention_backward"):
        times = [[part.time.median for part in step.breakdown if part.family == family] for step in (flexible, plain)]
        assert times[0] == times[1] and len(times[0]) == (mode == "training" or family == "attention_forward")
    assert "flex_attention" not in flexible.unmodelled


def test_a_custom_operator_is_priced_by_its_bytes_and_listed():
    @torch.library.custom_op("tilecast_tests::swirl", mutates_args=())
    def swirl(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @swirl.register_fake
    def _(x):
        return torch.empty_like(x)

    class WithCustom(nn.Module):
        def forward(self, x):
            return torch.ops.tilecast_tests.swirl(x) * 2

    graph = tilecast.trace(WithCustom(), (torch.zeros(16384, 16384, device="meta"),))
    found = tilecast.step(graph, "h100-sxm")
    assert list(found.unmodelled) == ["tilecast_tests.swirl"]
    assert 0.3 < found.unmodelled["tilecast_tests.swirl"] < 0.7  # as much traffic as the multiplication


def test_a_branch_on_values_is_reported_with_its_line():
    class Branching(nn.Module):
        def forward(self, x):
            if x.sum() > 0:  # the culprit
                return x
            return -x

    with pytest.raises(InvalidInput, match=r"test_tracing.py:\d+ \(if x.sum\(\) > 0: .*torch.cond") as problem:
        tilecast.trace(Branching(), (torch.zeros(4),))
    assert "\n" not in str(problem.value)


class Keyed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(32, 8)

    def forward(self, x, *, scale=None):
        return self.up(x) if scale is None else self.up(x) * scale


def test_arguments_are_given_in_order_by_name_or_as_one_tensor():
    x, scale = torch.zeros(4, 32), torch.zeros(4, 8)
    assert operators(tilecast.trace(Keyed(), (x,))) == operators(tilecast.trace(Keyed(), x)) == {"aten.addmm": 1}
    named = tilecast.trace(Keyed(), {"x": x, "scale": scale})
    assert operators(named) == {"aten.addmm": 1, "aten.mul": 1}
    assert named.inputs_bytes == (4 * 32 + 4 * 8) * 4


def test_a_module_may_write_into_its_inputs_and_copies_of_its_own_stay():
    class Writing(nn.Module):
        def forward(self, x):
            x.add_(1.0)
            return x.clone() * 2

    assert operators(tilecast.trace(Writing(), (torch.zeros(4, 32),))) == {"aten.add": 1, "aten.clone": 1, "aten.mul": 1}


def test_a_size_that_depends_on_values_is_reported_with_its_line():
    class Picking(nn.Module):
        def forward(self, x):
            return x[x > 0].sum()  # the culprit

    with pytest.raises(InvalidInput, match=r"test_tracing.py:\d+ \(return x\[x > 0\].*size is known at run time alone; .*torch.where"):
        tilecast.trace(Picking(), (torch.zeros(4),))


class Holding(nn.Module):
    """A linear layer, and something beside it."""

    def __init__(self, held: object = None) -> None:
        super().__init__()
        self.linear, self.held = nn.Linear(8, 8), held

    def forward(self, x):
        return self.linear(x)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(
    ("made", "kind"), [(threading.Lock, "lock"), (lambda: (each for each in (1, 2)), "generator"), (lambda: [threading.Lock()], "list")]
)
def test_what_cannot_be_copied_is_named_with_what_to_try(made, kind, mode):
    said = rf"Sequential cannot be traced: its attribute 0\.held, a {kind}, cannot be copied: .*cannot pickle .*; take it out of the module"
    with pytest.raises(InvalidInput, match=said):
        tilecast.trace(nn.Sequential(Holding(made())), torch.zeros(2, 8), mode=mode)


def test_a_tensor_computed_from_weights_is_named():
    module = Holding()
    module.twice = 2 * module.linear.weight
    with pytest.raises(InvalidInput, match=r"its attribute twice, a Tensor, cannot be copied: .*; compute such a tensor in forward"):
        tilecast.trace(module, torch.zeros(2, 8))


@pytest.mark.filterwarnings("ignore")  # PyTorch is about to drop such tensors
def test_quantised_and_lazy_modules_are_refused_with_what_to_try():
    quantised = Holding()
    quantised.register_buffer("narrow", torch.quantize_per_tensor(torch.zeros(8), 0.1, 0, torch.qint8))
    with pytest.raises(InvalidInput, match=r"its tensor narrow cannot be copied: .*; trace the module as it was before it was quantised"):
        tilecast.trace(quantised, torch.zeros(2, 8))
    packed = nn.Sequential(torch.ao.nn.quantized.Linear(8, 8))
    with pytest.raises(InvalidInput, match=r"its attribute 0\._packed_params.* cannot be copied: .*; trace the module as it was before"):
        tilecast.trace(packed, torch.zeros(2, 8))
    with pytest.raises(InvalidInput, match=r"its tensor weight cannot be copied: .*; call it once with its inputs"):
        tilecast.trace(nn.LazyLinear(8), torch.zeros(2, 8))


def test_a_trace_that_fails_says_nothing_but_its_error(capfd):
    class Sliced(nn.Module):
        def forward(self, x):
            return x[: int(x.sum().item())]

    for module, given in ((Sliced(), torch.zeros(4)), (Mlp(), torch.zeros(4, 5))):
        with pytest.raises(InvalidInput, match="cannot be traced"):
            tilecast.trace(module, (given,))
    assert capfd.readouterr() == ("", "")


def test_an_operator_without_shapes_says_what_to_register():
    @torch.library.custom_op("tilecast_tests::shapeless", mutates_args=())
    def shapeless(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    class WithCustom(nn.Module):
        def forward(self, x):
            return torch.ops.tilecast_tests.shapeless(x)

    with pytest.raises(InvalidInput, match=r"shapeless.*torch\.library\.register_fake"):
        tilecast.trace(WithCustom(), (torch.zeros(4),))


def test_a_recurrent_layer_is_its_products():
    # One product for the inputs of all 10 tokens, then one a token for the state: 4 gates of 64.
    graph = tilecast.trace(nn.LSTM(32, 64, batch_first=True), (torch.zeros(3, 10, 32),))
    assert sum(matrix_flop(node) for node in graph.nodes()) == 2 * 3 * 10 * (32 + 64) * 4 * 64
    assert not tilecast.step(graph, "l4").unmodelled


def test_frozen_weights_have_no_gradients_and_no_states():
    module = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 8))
    module[0].requires_grad_(False)
    graph = tilecast.trace(module, (torch.zeros(16, 32),), mode="training")
    memory = tilecast.step(graph, "h100-sxm", optimizer="adamw").memory
    assert memory.weights_bytes == 4 * (32 * 64 + 64 + 64 * 8 + 8)
    assert memory.gradients_bytes == 4 * (64 * 8 + 8)
    assert memory.optimizer_bytes == 2 * memory.gradients_bytes
    assert tilecast.trace(module, (torch.zeros(16, 32),)).frozen == ()
    # On two GPUs the trained layer's gradients alone are added up.
    (added,) = tilecast.step(graph, "h100-sxm", dp=2).collectives
    assert added.bytes * added.number == 4 * (64 * 8 + 8)


class Words(nn.Module):
    """Adapters of rank 1 beside every layer are trained, nothing else."""

    def __init__(self, layers=6, width=32):
        super().__init__()
        self.words, self.layers = nn.Embedding(100, width), Stacked(layers).layers
        self.requires_grad_(False)
        self.down, self.up = (nn.ModuleList(nn.Linear(*sizes, bias=False) for _ in range(layers)) for sizes in ((width, 1), (1, width)))

    def forward(self, ids):
        x = self.words(ids)
        for layer, down, up in zip(self.layers, self.down, self.up, strict=True):
            x = layer(x) + up(down(x))
        return x


def test_adapters_are_all_that_is_added_up_and_tensor_parallel_sums_are_those_of_the_layers():
    graph = tilecast.trace(Words(), (torch.zeros(3, 16, dtype=torch.int64),), mode="training")
    trained = 6 * 2 * 32
    assert graph.num_trained == trained
    replicas = tilecast.step(graph, "h100-sxm", dp=2)
    assert sum(each.bytes * each.number for each in replicas.collectives) == 4 * trained
    assert sum(part.share_fraction for part in replicas.breakdown) == pytest.approx(1.0, abs=1e-6)
    # Two sums a layer of 3 texts x 16 tokens x 32 x 4 bytes, and two back but for the first: nothing before it is trained. Narrow adapters
    # add none.
    (one,) = tilecast.step(graph, "h100-sxm", tp=2).collectives
    assert (one.family, one.bytes, one.number) == ("all_reduce", 3 * 16 * 32 * 4, 6 * 2 + 5 * 2)


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu"])
def test_adapters_of_gated_layers_are_reached_by_the_backward_pass(activation):
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
            self.requires_grad_(False)
            self.narrow, self.wide = nn.Linear(32, 2), nn.Linear(2, 32)

        def forward(self, x):
            return x + self.down(getattr(F, activation)(self.gate(x)) * self.up(x)) + self.wide(self.narrow(x))

    graph = tilecast.trace(nn.Sequential(*(Gated() for _ in range(6))), (torch.zeros(4, 32),), mode="training")
    # In the first layer gradients end at the adapter.
    assert layers(graph).number == 6 and layers(graph).unreached <= 1


def test_attention_that_pytorch_takes_apart_tells_how_far_gradients_go():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(32, 96)

        def forward(self, x):
            query, key, value = self.up(x).chunk(3, dim=-1)
            return x + F.scaled_dot_product_attention(query, key, torch.cat([value, value], -1))[..., :32]  # no fused kernel for it

    module = nn.Sequential(*(Wide() for _ in range(6)))
    module[:2].requires_grad_(False)
    graph = tilecast.trace(module, (torch.zeros(2, 4, 8, 32),), mode="training")
    assert operators(graph)["aten._safe_softmax"] == 6
    assert (layers(graph).number, layers(graph).unreached) == (6, 2)


def test_layers_before_the_first_trained_one_are_not_run_again():
    module = Stacked(8).requires_grad_(False)
    for layer in module.layers[5:]:
        layer.requires_grad_(True)
    plain, lean = (tilecast.trace(module, (torch.zeros(2, 6, 32),), mode="training", recompute=choice) for choice in (False, True))
    again = operators(lean)["aten._softmax"] - operators(plain)["aten._softmax"]
    assert again == 3 and lean.live_bytes()["kept"] < plain.live_bytes()["kept"]


@pytest.mark.parametrize(
    ("trained", "reached", "weights"),
    [
        (slice(0, 8), 8, 8),
        (slice(5, 8), 3, 3),  # the backward pass ends at the sixth layer
        (slice(7, 8), 1, 1),
        (slice(0, 3), 8, 3),  # it runs through all, and the last five only hand gradients on
    ],
)
def test_a_backward_pass_ends_at_the_first_trained_layer(trained, reached, weights):
    module = Stacked(8).requires_grad_(False)
    for layer in module.layers[trained]:
        layer.requires_grad_(True)
    inputs = (torch.zeros(2, 6, 32),)
    graph = tilecast.trace(module, inputs, mode="training")
    every_layer = capture.captured(
        module, inputs, names=(), mode="training", loss=None, recompute=False, autocast=None, name="Stacked", fold=False
    )
    assert list(graph.nodes()) == list(every_layer.nodes())
    found = layers(graph)
    assert (found.number, found.reached) == (8, reached)
    own = sum(tensor.numel() for tensor in module.layers[0].parameters())
    assert graph.num_trained == weights * own and graph.num_parameters == 8 * own
    whole, shared = (tilecast.step(graph, "h100-sxm", **how) for how in ({}, {"fsdp": 2}))
    gathered, scattered = ([each for each in shared.collectives if each.family == name] for name in ("all_gather", "reduce_scatter"))
    assert sum(each.number for each in gathered) == 8 + reached
    assert sum(each.bytes * each.number for each in scattered) == pytest.approx(4 * weights * own)
    assert whole.memory.gradients_bytes == 4 * weights * own
    # The kernels are those of one GPU, whatever the layers are taken to be.
    spent = [sum(part.time.median for part in step.breakdown if part.phase == "backward") for step in (whole, shared)]
    assert spent[1] == pytest.approx(spent[0], rel=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_module_that_checkpoints_itself_runs_its_layers_again(reentrant):
    class Checkpointed(Stacked):
        def forward(self, x):
            for layer in self.layers:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant)
            return x

    x = torch.zeros(2, 6, 32)
    graph, asked = tilecast.trace(Checkpointed(6), x, mode="training"), tilecast.trace(Stacked(6), x, mode="training", recompute=True)
    assert graph.segments == asked.segments and graph.recompute
    assert any("checkpoints its activations itself" in note for note in tilecast.step(graph, "l4").notes)
    assert tilecast.trace(Checkpointed(6), x).notes == ()
    short = tilecast.trace(Checkpointed(1), x, mode="training")
    assert not short.recompute and any("left out" in note for note in short.notes)
    assert operators(short, ("backward",))["aten._softmax_backward_data"] == 1


def test_selective_recomputation_runs_attention_again_and_no_linear_layer():
    inputs = (torch.zeros(2, 6, 32),)
    plain, lean, leanest = (
        tilecast.trace(Stacked(8), inputs, mode="training", recompute=choice) for choice in (False, "selective", "full")
    )
    assert operators(lean)["aten.addmm"] == operators(plain)["aten.addmm"] < operators(leanest)["aten.addmm"]
    assert operators(lean)["aten._softmax"] > operators(plain)["aten._softmax"]


def test_the_format_of_a_graph_is_that_of_its_products():
    x = torch.zeros(16, 32)
    assert tilecast.trace(Mlp(), (x,)).dtype == "fp32"
    assert tilecast.trace(Mlp().half(), (x.half(),)).dtype == "fp16"
    assert tilecast.trace(Mlp(), (x,), mode="training", autocast="bf16").dtype == "amp"
    assert tilecast.step(tilecast.trace(Mlp().half(), (x.half(),)), "h100-sxm").inputs["dtype"] == "fp16"


def test_a_module_is_to_be_traced_first():
    with pytest.raises(InvalidInput, match=r"trace it first, tilecast\.step\(tilecast\.trace"):
        tilecast.step(Mlp(), "l4")


@pytest.mark.parametrize(
    ("module", "given", "said"),
    [
        ("Mlp", (), "module is a str and must be"),
        (Mlp(), 3, "example_inputs is a int and must be"),
        (Mlp(), (), "example_inputs must be the arguments of forward"),
        (Mlp(), (torch.zeros(4, 32),) * 2, "example_inputs must be the arguments of forward"),
    ],
)
def test_arguments_of_another_kind_are_refused(module, given, said):
    with pytest.raises(InvalidInput, match=said) as problem:
        tilecast.trace(module, given)
    assert "inspect.py" not in str(problem.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": "dreaming"}, "mode = 'dreaming'"),
        ({"recompute": True}, "recompute is for training"),
        ({"mode": "training", "recompute": "some"}, "recompute = 'some' must be"),
        ({"mode": "training", "loss": 3}, "loss = 3 must be a function"),
        ({"loss": sum}, "loss is for training"),
        ({"mode": "training", "loss": lambda outputs: outputs}, r"one floating-point number and gives .* of shape \(4, 8\)"),
        ({"mode": "training", "loss": lambda outputs: 1.0}, "one floating-point number and gives a float"),
        ({"autocast": "fp4"}, "autocast = 'fp4'"),
    ],
)
def test_wrong_questions_are_refused(given, said):
    with pytest.raises(InvalidInput, match=said):
        tilecast.trace(Mlp(), (torch.zeros(4, 32),), **given)


def test_autocast_multiplies_in_sixteen_bits():
    graph = tilecast.trace(Mlp(), (torch.zeros(16, 32),), mode="training", autocast="bf16")
    products = [node for node in graph.nodes() if node.op in ("aten.mm", "aten.addmm")]
    assert products and all(node.inputs[-1].dtype == "bf16" for node in products)
    assert operators(graph)["aten._to_copy"] > 0


def test_weights_are_never_allocated_and_the_module_stays_as_it_was():
    with torch.device("meta"):
        huge = nn.Sequential(nn.Linear(1 << 17, 1 << 17), nn.Linear(1 << 17, 1 << 17))  # 137 GB
    graph = tilecast.trace(huge, (torch.zeros(4, 1 << 17, device="meta"),), mode="training")
    assert graph.num_parameters == 2 * ((1 << 34) + (1 << 17))
    assert all(weight.device.type == "meta" and weight.grad is None for weight in huge.parameters())


def test_equal_layers_are_folded_and_nothing_is_lost():
    made = {"mode": "training", "loss": None, "recompute": False, "autocast": None, "name": "stacked"}
    inputs = (torch.zeros(2, 6, 32),)
    short, long = (capture.captured(Stacked(7), inputs, **made, fold=fold) for fold in (True, False))
    assert list(short.nodes()) == list(long.nodes())
    assert short == long
    assert max(segment.repeat for segment in short.segments) >= 6


class Twice(Stacked):
    """Two passes over the same layers, with something between them."""

    def forward(self, x):
        return super().forward(torch.relu(super().forward(x)))


class Siamese(Stacked):
    def forward(self, x):
        left, right = (super(Siamese, self).forward(part).mean(1).tanh() for part in (x, x * 2))
        return left @ right.transpose(0, 1)


class Numbered(Stacked):
    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x).tanh() if number % 4 == 0 else layer(x)
        return x


class Gathering(Stacked):
    def forward(self, x):
        return torch.stack([x := layer(x) for layer in self.layers]).mean(0)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("kind", [Twice, Siamese, Numbered, Gathering])
def test_equal_layers_that_act_otherwise_are_not_folded_away(kind, mode, monkeypatch):
    graph = tilecast.trace(kind(8), torch.zeros(2, 6, 32), mode=mode)
    monkeypatch.setattr(capture, "shortened", lambda model: (0, 0))
    full = tilecast.trace(kind(8), torch.zeros(2, 6, 32), mode=mode)
    assert list(graph.nodes()) == list(full.nodes())
    assert graph.live_bytes() == full.live_bytes()


def test_layers_that_differ_are_traced_one_by_one():
    module = Stacked(6)
    module.layers[3].heads = 2
    graph = tilecast.trace(module, (torch.zeros(2, 6, 32),))
    softmaxes = [node.outputs[0].shape[1] for node in graph.nodes() if node.op == "aten._softmax"]
    assert softmaxes == [4, 4, 4, 2, 4, 4]


def test_recomputation_runs_what_pytorch_runs_again_and_keeps_less():
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import checkpoint

    plain, lean = (tilecast.trace(Stacked(8), (torch.zeros(2, 6, 32),), mode="training", recompute=choice) for choice in (False, True))
    assert lean.live_bytes()["kept"] < 0.3 * plain.live_bytes()["kept"]
    assert operators(lean)["aten.mm"] == operators(plain)["aten.mm"]
    ran = Counter()

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            ran[str(function.overloadpacket)] += 1
            return function(*arguments, **(named or {}))

    with Counting():
        x = torch.zeros(2, 6, 32, requires_grad=True)
        for layer in Stacked(8).layers:
            x = checkpoint(layer, x, use_reentrant=False)
        x.sum().backward()
    assert operators(lean)["aten.addmm"] == ran["aten.addmm"] > operators(plain)["aten.addmm"]


HEADS = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 5, "vocab_size": 99}
SMALL = {
    "BertForPreTraining": {**HEADS, "intermediate_size": 64, "max_position_embeddings": 64},
    "GPT2LMHeadModel": {"n_embd": 32, "n_head": 4, "n_layer": 5, "n_positions": 64, "vocab_size": 99},
    "OPTForCausalLM": {**HEADS, "ffn_dim": 64, "max_position_embeddings": 64},
    "MPTForCausalLM": {"d_model": 32, "n_heads": 4, "n_layers": 5, "vocab_size": 99},
    "LlamaForCausalLM": {**HEADS, "intermediate_size": 64, "num_key_value_heads": 2},
    "SwitchTransformersForConditionalGeneration": {
        "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 8, "num_experts": 2, "vocab_size": 99, "expert_capacity": 4,
    },
}  # fmt: skip


# A training step begins with the forward pass.
TRACED = [*((name, "training") for name in SMALL), ("BertForSequenceClassification", "inference")]


@pytest.mark.parametrize(("architecture", "mode"), TRACED)
def test_a_familys_folded_graph_equals_its_full_trace(architecture, mode, monkeypatch):
    asked = {"mode": mode, "batch": 3, "seq": 10, "dtype": "fp32", "attention": "eager"}
    config = {"architectures": [architecture], **SMALL[architecture if architecture in SMALL else "BertForPreTraining"]}
    short = traced_model("small", config, **asked)
    monkeypatch.setattr(capture, "shortened", lambda model: (0, 0))
    assert list(short.nodes()) == list(traced_model("small", config, **asked).nodes())


@pytest.mark.parametrize(
    ("id", "mode", "batch", "seq", "dtype", "attention"),
    [
        ("GPT2-Large", "training", 5, 96, "fp32", "eager"), ("BERT-Large", "inference", 2, 384, "fp32", "eager"),
        ("OPT-1.3B", "training", 1, 64, "fp32", "eager"), ("mosaicml/mpt-1b", "training", 4, 512, "bf16", "flash"),
    ],
)  # fmt: skip
def test_a_saved_graph_equals_the_trace_at_any_batch_and_length(id, mode, batch, seq, dtype, attention):
    saved = step_models.saved_graph(id, mode, batch, seq, dtype, attention)
    traced = traced_model(id, step_models.facts()[id], mode=mode, batch=batch, seq=seq, dtype=dtype, attention=attention)
    assert saved is not None
    assert list(saved.nodes()) == list(traced.nodes())
    assert saved == traced


def test_fused_attention_becomes_one_kernel_each_way():
    asked = {"mode": "training", "batch": 2, "seq": 16, "dtype": "bf16", "attention": "sdpa"}
    graph = traced_model("small", {"architectures": ["LlamaForCausalLM"], **SMALL["LlamaForCausalLM"]}, **asked)
    families = Counter(part.family for part in tilecast.step(graph, "h100-sxm", dtype="bf16").breakdown)
    assert families["attention_forward"] == families["attention_backward"] == 1


def test_an_unknown_architecture_points_to_trace():
    with pytest.raises(InvalidInput, match=r"tilecast\.trace"):
        traced_model("odd", {"architectures": ["OddModel"]}, mode="inference", batch=1, seq=8, dtype="fp32", attention="eager")


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers_are_cells_and_say_so(layer):
    graph = tilecast.trace(layer(16, 16, batch_first=True), (torch.zeros(2, 5, 16),))
    assert sum(node.op in ("aten.mm", "aten.addmm") for node in graph.nodes()) >= 5  # at least one product a token
    assert any("cuDNN's fused kernels would be faster" in note for note in tilecast.step(graph, "l4").notes)


@pytest.mark.parametrize(
    "architecture, mode", [("LlamaForCausalLM", "training"), ("GPT2LMHeadModel", "inference"), ("OPTForCausalLM", "training")]
)
def test_a_third_batch_is_told_by_two_and_equals_its_trace(architecture, mode, monkeypatch):
    from tilecast.workloads.tracing import bundled

    config = {"architectures": [architecture], **SMALL[architecture]}
    asked = {"mode": mode, "seq": 64, "dtype": "bf16", "attention": "sdpa"}
    traced = []

    def counted(id, config, **asked):
        traced.append(asked["batch"])
        return traced_model(id, config, **asked)

    monkeypatch.setattr(bundled, "traced_model", counted)
    for batch in (1, 4, 2, 3, 8, 4):
        told = step_models.model_graph({**config, "_name_or_path": "small"}, batch=batch, **asked)
        real = traced_model("small", {**config, "_name_or_path": "small"}, batch=batch, **asked)
        assert told == real and list(told.nodes()) == list(real.nodes())
    assert traced == [1, 4, 2]


def test_batches_whose_sizes_follow_no_rule_are_traced(monkeypatch):
    def unruly(*_):
        raise InvalidInput("a dimension is no product of the batch")

    monkeypatch.setattr(step_models, "symbolic", unruly)
    config = {"architectures": ["LlamaForCausalLM"], **SMALL["LlamaForCausalLM"], "_name_or_path": "unruly"}
    graphs = [
        step_models.model_graph(config, mode="inference", batch=batch, seq=32, dtype="fp32", attention="eager") for batch in (2, 4, 6)
    ]
    assert [graph.batch for graph in graphs] == [2, 4, 6]
    assert len({graph.segments for graph in graphs}) == 3
