"""The modules that `tilecast step` traces: every family in every format, its FLOP and its weights."""

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch: pip install 'tilecast[torch]'")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from tilecast.workloads.step_models import DTYPES, facts  # noqa: E402
from tilecast.workloads.tracing.bundled import FORMATS, traced_model  # noqa: E402
from tilecast.workloads.tracing.capture import _weightless  # noqa: E402
from tilecast.workloads.tracing.losses import FusedTokenLoss, TokenLoss  # noqa: E402
from tilecast.workloads.tracing.modules.base import Asked, families  # noqa: E402

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers")


def few_layers(config, number=2):
    return {**config, **{name: number for name in LAYERS if name in config}}


# One bundled config of every family.
CONFIGS = {str(table["architectures"][0]): few_layers(table) for table in reversed(facts().values())}


def runs(config, mode, dtype, attention):
    """A step with tensors that hold nothing, as it is traced: a product of two formats fails here as it does on a GPU."""
    family = families()[config["architectures"][0]]
    asked = Asked(mode=mode, attention=attention, batch=2, seq=8)
    training = mode == "training"
    with torch.device("meta"):
        module = family.build(config, asked).to(FORMATS[dtype])
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "amp")
    with FakeTensorMode(allow_non_fake_inputs=True), torch.set_grad_enabled(training), autocast:
        module = _weightless(module).train(training)
        outputs = module(*family.inputs(asked))
        if training:
            (FusedTokenLoss() if family.fused_loss else TokenLoss())(outputs).backward()
            assert attention != "eager" or all(weight.grad is not None for weight in module.parameters())
    return (outputs if isinstance(outputs, tuple) else (outputs,))[0]


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_runs_in_every_format(name, dtype, mode):
    for attention in ("eager", "sdpa"):
        logits = runs(CONFIGS[name], mode, dtype, attention)
        assert logits.dtype == (torch.bfloat16 if dtype == "amp" else FORMATS[dtype])


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_switch_routes_in_fp32_and_works_in_bf16(mode):
    config = few_layers(facts()["Switch-XL-4"])
    graph = traced_model("switch", config, mode=mode, batch=1, seq=8, dtype="bf16", attention="eager")
    routers = [node for node in graph.nodes() if node.op == "aten._softmax" and node.outputs[0].shape[-1] == config["num_experts"]]
    assert [node.outputs[0].dtype for node in routers] == ["fp32"] * 2
    products = {tensor.dtype for node in graph.nodes() if node.op == "aten.mm" for tensor in node.inputs if config["d_ff"] in tensor.shape}
    assert products == {"bf16"}
