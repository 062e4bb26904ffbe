"""Which Tilecast kernel stands for which traced operator: sizes worked out by hand."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.made_trace import ADD, BF16, GEMM, NCCL, Made
from tilecast.diagnosis.diagnose import diagnose
from tilecast.diagnosis.rows import Row

ELEMENTWISE = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<x> >"
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>"
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 3>"
FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<x, BinaryOpScalarFunctor<float, 2, 1, 1>>"
FLASH = "void pytorch_flash::flash_fwd_kernel<x>"
LONG, F32, FP8 = "long int", "float", "c10::Float8_e4m3fn"
S = "Scalar"


def row_of(tmp_path: Path, op: str, dims: list[Any], kernel: str, types: list[str] | None = None, scalars: Any = None, **more: Any) -> Row:
    made = Made(metadata=more.pop("metadata", {}))
    extra = {"scalars": scalars} if scalars is not None else {}
    made.call(op, dims, kernel, 0.0, 1000.0, **({"types": types} if types else {}), **extra, **more)
    (row,) = diagnose(made.write(tmp_path / "t.json")).rows
    return row


LISTS = [[[100, 32], [8]], [[100, 32], [8]]]
CASES: dict[str, tuple[Any, ...]] = {
    # operator, dims, kernel, types, scalars -> family, sizes
    "addmm": (
        "aten::addmm",
        [[640], [888, 2880], [2880, 640], [], []],
        GEMM,
        None,
        None,
        "gemm",
        {"m": 888, "n": 640, "k": 2880, "batch": 1, "bias": True},
    ),
    "bmm": ("aten::bmm", [[16, 128, 64], [16, 64, 96]], GEMM, None, None, "gemm", {"m": 128, "n": 96, "k": 64, "batch": 16, "bias": False}),
    "linear": ("aten::linear", [[4, 8, 64], [96, 64], [96]], GEMM, None, None, "gemm", {"m": 32, "n": 96, "k": 64, "bias": True}),
    "scaled_mm, result first": (
        "_C::cutlass_scaled_mm",
        [[64, 512], [64, 256], [256, 512], [1], [1]],
        "void cutlass::device_kernel<x>",
        [BF16, FP8, FP8, F32, F32],
        None,
        "gemm",
        {"m": 64, "n": 512, "k": 256},
    ),
    "weights as rows": ("my::gemm", [[64, 256], [512, 256]], GEMM, None, None, "gemm", {"m": 64, "n": 512, "k": 256}),
    "conv": (
        "aten::cudnn_convolution",
        [[2, 3, 32, 32], [8, 3, 4, 4], [], [], [], [], [], [], []],
        "cutlass_tensorop_bf16_fprop_x",
        None,
        ["", "", "[0, 0]", "[4, 4]", "[1, 1]", "1", "False", "False", "True"],
        "conv2d",
        {"batch": 2, "in_channels": 3, "out_channels": 8, "height": 32, "width": 32, "kernel": 4, "stride": 4, "padding": 0},
    ),
    "conv, gradient of the image": (  # as many pixels on both sides: 2 x 16 x 16
        "aten::convolution_backward",
        [[2, 8, 16, 16], [2, 3, 16, 16], [8, 3, 3, 3], [], [], [], [], [], [], [], []],
        "sm80_xmma_dgrad_x",
        None,
        ["", "", "", "[8]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, True]"],
        "gemm",
        {"m": 512, "n": 3, "k": 72},
    ),
    "conv, gradient of the weight": (
        "aten::convolution_backward",
        [[2, 8, 16, 16], [2, 3, 16, 16], [8, 3, 3, 3], [], [], [], [], [], [], [], []],
        "sm80_xmma_wgrad_x",
        None,
        ["", "", "", "[8]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, True]"],
        "gemm",
        {"m": 8, "n": 27, "k": 512},
    ),
    "flash attention": (
        "aten::_flash_attention_forward",
        [[2, 512, 16, 64], [2, 512, 4, 64], [2, 512, 4, 64], [], [], [], [], [], []],
        FLASH,
        None,
        ["", "", "", "", "", "512", "512", "0.", "True"],
        "attention_prefill",
        {"batch": 2, "q_len": 512, "kv_len": 512, "num_heads": 16, "num_kv_heads": 4, "head_dim": 64, "causal": True},
    ),
    "fused attention of PyTorch": (
        "aten::_scaled_dot_product_efficient_attention",
        [[2, 16, 512, 64]] * 3,
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80",
        None,
        ["", "", "", "", "False", "0.", "False"],
        "attention_prefill",
        {"batch": 2, "q_len": 512, "kv_len": 512, "num_heads": 16, "num_kv_heads": 16, "head_dim": 64, "causal": False},
    ),
    "one query is decode": (
        "aten::_flash_attention_forward",
        [[8, 1, 16, 64], [8, 900, 4, 64], [8, 900, 4, 64]],
        FLASH,
        None,
        [""] * 9,
        "attention_decode",
        {"batch": 8, "kv_len": 900, "num_heads": 16, "num_kv_heads": 4, "head_dim": 64},
    ),
    "packed requests of one length": (  # 4 requests of 128: starts has 5 entries
        "flash_attn::_flash_attn_varlen_forward",
        [[512, 16, 64], [512, 4, 64], [512, 4, 64], [5], [5], [], []],
        "void flash_fwd_kernel<x>",
        [BF16, BF16, BF16, "int", "int", S, S],
        ["", "", "", "", "", "128", "128", "True"],
        "attention_prefill",
        {"batch": 4, "q_len": 128, "kv_len": 128, "num_heads": 16, "num_kv_heads": 4, "causal": True},
    ),
    "attention, backward": (
        "aten::_scaled_dot_product_flash_attention_backward",
        [[2, 16, 512, 64]] * 5,
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_x",
        None,
        [""] * 11 + ["True"],
        "attention_backward",
        {"batch": 2, "q_len": 512, "num_heads": 16, "head_dim": 64, "causal": True},
    ),
    "experts in the open": (
        "sglang::outplace_fused_experts",
        [[64, 1024], [8, 512, 1024], [8, 1024, 256], [64, 2], [64, 2]],
        "fused_moe_kernel",
        [BF16, BF16, BF16, F32, "int"],
        None,
        "moe",
        {"num_tokens": 64, "hidden_size": 1024, "inter_size": 256, "num_experts": 8, "topk": 2, "gated": True},
    ),
    "rms norm with residual": (
        "_C::fused_add_rms_norm",
        [[888, 2880], [888, 2880], [2880], []],
        "fused_add_rms_norm_kernel",
        None,
        None,
        "rms_norm",
        {"rows": 888, "cols": 2880, "residual": True},
    ),
    "rms norm of heads": (
        "aiter::rmsnorm",
        [[64, 128], [64, 128], [128], []],
        "rmsnorm_x",
        None,
        None,
        "rms_norm",
        {"rows": 64, "cols": 128},
    ),
    "layer norm": (
        "aten::native_layer_norm",
        [[4, 16, 32], [], [32], [32], []],
        "vectorized_layer_norm_kernel",
        [BF16, "ScalarList", BF16, BF16, S],
        None,
        "layer_norm",
        {"rows": 64, "cols": 32},
    ),
    "layer norm, backward": (
        "aten::native_layer_norm_backward",
        [[4, 16, 32], [4, 16, 32]],
        "layer_norm_grad_input_kernel",
        None,
        None,
        "layer_norm_backward",
        {"rows": 64, "cols": 32},
    ),
    "softmax along the middle": (
        "aten::_softmax",
        [[4, 16, 32], [], []],
        "cunn_SoftMaxForward",
        None,
        ["", "1", "False"],
        "softmax",
        {"rows": 128, "cols": 16},
    ),
    "softmax, backward": (
        "aten::_softmax_backward_data",
        [[64, 32], [64, 32]],
        "softmax_warp_backward",
        None,
        None,
        "softmax_backward",
        {"rows": 64, "cols": 32},
    ),
    "gated activation": (
        "_C::silu_and_mul",
        [[64, 512], [64, 1024]],
        "act_and_mul_kernel",
        None,
        None,
        "silu_mul",
        {"rows": 64, "cols": 512},
    ),
    "rope": (
        "_C::rotary_embedding",
        [[888], [888, 512], [888, 64], [], [4096, 64], []],
        "rotary_embedding_kernel",
        [LONG, BF16, BF16, S, BF16, S],
        ["", "", "", "64", "", "True"],
        "rope",
        {"rows": 888, "num_heads": 8, "num_kv_heads": 1, "head_dim": 64},
    ),
    "cache write": (
        "_C_cache_ops::reshape_and_cache_flash",
        [[888, 2, 64], [888, 2, 64]],
        "reshape_and_cache_flash_kernel",
        None,
        None,
        "kv_cache_write",
        {"rows": 888, "num_kv_heads": 2, "head_dim": 64},
    ),
    "quantisation": (
        "_C::static_scaled_fp8_quant",
        [[888, 512], [888, 512], []],
        "scaled_fp8_quant_kernel",
        [FP8, BF16, F32],
        None,
        "quantize",
        {"rows": 888, "cols": 512, "op": "static_scaled_fp8"},
    ),
    "sum of two": ("aten::add", [[64, 512], [64, 512], []], ADD, None, None, "memory_pass", {"read_bytes": 131072, "written_bytes": 65536}),
    "broadcast": ("aten::mul", [[64, 512], [512]], ELEMENTWISE, None, None, "memory_pass", {"read_bytes": 66560, "written_bytes": 65536}),
    "conversion": (
        "aten::copy_",
        [[64, 512], [64, 512], []],
        ADD,
        [F32, BF16, S],
        None,
        "memory_pass",
        {"read_bytes": 65536, "written_bytes": 131072},
    ),
    "fill": ("aten::fill_", [[64, 512], []], ADD, None, None, "memory_pass", {"read_bytes": 0, "written_bytes": 65536}),
    "comparison": ("aten::gt", [[64, 512], [64, 512]], ADD, None, None, "memory_pass", {"read_bytes": 131072, "written_bytes": 32768}),
    "concatenation": (
        "aten::cat",
        [[[4, 16, 32], [4, 8, 32]], []],
        CAT,
        ["TensorList", S],
        None,
        "memory_pass",
        {"read_bytes": 6144, "written_bytes": 6144},
    ),
    "mean": (
        "aten::mean",
        [[64, 512], [], [], []],
        REDUCE,
        [F32, "ScalarList", S, ""],
        None,
        "memory_pass",
        {"read_bytes": 131072, "written_bytes": 256},
    ),
    "embedding": (
        "aten::embedding",
        [[32000, 512], [4, 16]],
        "void at::native::vectorized_gather_kernel<16, long>",
        [BF16, LONG],
        None,
        "embedding",
        {"rows": 64, "cols": 512, "vocab_size": 32000},
    ),
    "compiled": (  # in, in, out
        "triton_poi_fused_add_0",
        [[64, 512], [64, 512], [64, 512], []],
        "triton_poi_fused_add_0",
        None,
        None,
        "memory_pass",
        {"read_bytes": 131072, "written_bytes": 65536},
    ),
    "optimizer, many tensors": (  # 3,208 elements of 4 bytes
        "aten::_foreach_add_",
        [*LISTS, []],
        FOREACH,
        ["TensorList", "TensorList", S],
        None,
        "memory_pass",
        {"read_bytes": 25664, "written_bytes": 12832},
    ),
    "optimizer, fused": (
        "aten::_fused_adamw_",
        [*LISTS, *LISTS, [], [[], []]],
        FOREACH,
        ["TensorList"] * 6,
        None,
        "memory_pass",
        {"read_bytes": 4 * 12832 + 8, "written_bytes": 3 * 12832 + 8},
    ),
    "batch norm, training": (
        "aten::native_batch_norm",
        [[2, 8, 16, 16], [8], [8]],
        "batch_norm_collect_statistics_kernel",
        None,
        ["", "", "", "", "", "True"],
        "memory_pass",
        {"read_bytes": 16384, "written_bytes": 8192},
    ),
    "batch norm, inference": (
        "aten::native_batch_norm",
        [[2, 8, 16, 16], [8], [8]],
        "batch_norm_transform_input_kernel",
        None,
        ["", "", "", "", "", "False"],
        "memory_pass",
        {"read_bytes": 8192, "written_bytes": 8192},
    ),
    "embedding, backward": (  # 64 tokens of 32 in a table of 100: 64 rows change
        "aten::embedding_dense_backward",
        [[4, 16, 32], [4, 16], [], [], []],
        "embedding_backward_feature_kernel",
        [F32, LONG, S, S, S],
        ["", "", "100", "-1", "False"],
        "memory_pass",
        {"read_bytes": 8192 + 8192 + 512, "written_bytes": 8192},
    ),
    "loss": (
        "aten::nll_loss_forward",
        [[128, 100], [128]],
        "nll_loss_forward_reduce_cuda_kernel_2d",
        [F32, LONG],
        None,
        "memory_pass",
        {"read_bytes": 5120, "written_bytes": 32},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_the_kernel_its_shapes_make_it(tmp_path: Path, name: str) -> None:
    op, dims, kernel, types, scalars, model, sizes = CASES[name]
    row = row_of(tmp_path, op, dims, kernel, types, scalars)
    assert (row.unpriced_because, row.model) == ("", model)
    assert row.sizes is not None
    assert {name: row.sizes[name] for name in sizes} == sizes


@pytest.mark.parametrize(
    ("op", "dims", "kernel", "types", "because"),
    [
        ("aten::mm", [[64, 32], [33, 64]], GEMM, None, "is none"),
        ("aten::mm", [[64, 32], [32, 64]], GEMM, ["c10::complex<float>"] * 2, "not modelled"),
        ("my::gemm", [[64, 32], [33, 65]], GEMM, None, "sizes of the product"),
        ("aten::index", [[64, 32], []], "void at::native::index_elementwise_kernel<x>", None, "sizes are not in the shapes"),
        ("aten::sort", [[64, 32]], "void at::native::sbtopk::gatherTopK<x>", None, "no model of sort or scan"),
        ("vllm::moe_forward", [[64, 1024], [64, 8]], "fused_moe_kernel", None, "experts' sizes"),
        ("vllm::unified_attention", [[64, 8, 64], [64, 8, 64]], "fmhaSm100aKernel_x", None, "lengths of the requests"),
        ("vllm::unified_attention", [[64, 8, 64], [64, 8, 64]], "fmhaSm100aKernel_SlidingOrChunkedCausal", None, "sliding window"),
        ("aten::add", [[64, 32], [63, 32]], ADD, None, "do not go together"),
        ("aten::my_own_op", [[64, 32]], ADD, None, "what aten::my_own_op makes of its shapes"),
        ("aten::conv3d", [[1, 3, 8, 8, 8], [4, 3, 3, 3, 3]], "implicit_convolve_sgemm", None, "not modelled"),
    ],
)
def test_what_cannot_be_known_is_not_priced_and_says_why(
    tmp_path: Path, op: str, dims: list[Any], kernel: str, types: list[str] | None, because: str
) -> None:
    row = row_of(tmp_path, op, dims, kernel, types)
    assert not row.is_priced
    assert because in row.unpriced_because


def test_kernels_that_take_single_elements_are_told_from_those_that_take_vectors(tmp_path: Path) -> None:
    dims = [[8192, 1024], [8192, 1024], []]
    wide, narrow = (row_of(tmp_path, "aten::add", dims, kernel) for kernel in (ADD, ELEMENTWISE))
    assert narrow.predicted_s is not None and wide.predicted_s is not None
    assert narrow.predicted_s > wide.predicted_s
    assert narrow.ceiling_s == wide.ceiling_s  # the work is the same


def test_collectives_take_their_sizes_from_the_kernel_or_the_world(tmp_path: Path) -> None:
    nccl = {"Collective name": "_allgather_base", "In msg nelems": 1000, "Out msg nelems": 8000, "Group size": 8, "dtype": "BFloat16"}
    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    row = row_of(tmp_path, "record_param_comms", [[1, 1000]], gather, **nccl)
    assert row.sizes is not None
    assert (row.model, row.sizes["bytes"], row.sizes["num_gpus"]) == ("all_gather", 16000, 8)
    row = row_of(tmp_path, "record_param_comms", [[1, 1000]], "ncclDevKernel_Generic_1(x)", **nccl)  # its name does not tell
    assert (row.family, row.model) == ("collective", "all_gather")
    symmetric = "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>"
    world = {"distributedInfo": {"rank": 0, "world_size": 4}}
    row = row_of(tmp_path, "symm_mem::multimem_all_reduce_", [[5000], [], []], symmetric, metadata=world)
    assert row.sizes is not None
    assert (row.model, row.sizes["bytes"], row.sizes["num_gpus"], row.notes) == ("all_reduce", 10000, 4, ("among all 4 ranks",))
    fused = "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<x>"
    row = row_of(tmp_path, "sglang::flashinfer_allreduce_residual_rmsnorm", [[38, 7168], [38, 7168], [7168]], fused, metadata=world)
    assert row.sizes is not None
    assert (row.model, row.sizes["bytes"]) == ("all_reduce", 38 * 7168 * 2)
    row = row_of(tmp_path, "symm_mem::multimem_all_reduce_", [[5000], [], []], symmetric)
    assert row.unpriced_because == "the number of ranks is not in the trace"
    assert row_of(tmp_path, "c10d::allreduce_", [[]], NCCL).unpriced_because == "the size of the message is not in the trace"
