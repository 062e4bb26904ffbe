"""No number chosen on data hides in code: what kernels/ and execution/ hold beside constants/*.toml is listed here with its source."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilecast.execution.fitted import FOLDER

PACKAGE = FOLDER.parents[1]
FILES = sorted(path for part in ("kernels", "execution") for path in (PACKAGE / part).glob("*.py") if path.name != "contract.py")
MOST = 40

# Nobody measured these and no code holds them: they count like fitted numbers.
CHOSEN = {
    "analytic.SHARPNESS": ("how sharply a library prefers the faster of its variants",),
    "cache.FULL, EMPTY": ("below this share of L2 a working set stays", "above this one nothing does"),
}

# Everything else: a fact of hardware, of a library's code, a count of instructions or bytes, or how something is computed.
SOURCES = {
    "hardware": {
        "matrix_units.LEGACY_MMA",  # published microbenchmarks of mma.sync on H100; A100's rate on data-centre Blackwell
        "attention_loops.FEWEST_ROWS",  # rows of the smallest tensor-memory instruction
        "attention_loops.BULK_COPY_BYTES_PER_CLOCK",  # width of an SM's port to L2
        "attention_loops.ROWS_OF_WARPS",  # mma.sync and wgmma: 16 rows a warp, four warps
        "attention_loops.VECTOR_ELEMENTS",  # 16 bytes
        "attention_loops.THREADS_PER_SM",
        "attention_loops.REGISTER_BYTES_PER_SM, ACCUMULATOR_BYTES",  # 64 Ki registers; fp32
        "streaming.VECTOR_BYTES",
        "analytic.NARROWEST_WIDTH",  # Volta's and Turing's tensor cores
        "analytic.PORT_BYTES_PER_CLOCK",  # twice attention_loops.BULK_COPY_BYTES_PER_CLOCK: reads and writes
        "conv2d.WINOGRAD_SHARE",  # the algorithm's own count
        "clock.REFERENCE_WIDTH",  # the unit in which energy_j_per_flop is told
        "clock.REFERENCE_NM",  # likewise vector_energy_j_per_flop
        "clock.NARROW_POWER",  # power of boards at their limit, in bf16, fp8 and nvfp4
        "clock.PROCESS_NM",  # foundries
        "clock.WIDE_SM",  # lanes of an SM of GA10x, Ada, Hopper and Blackwell
        "clock.BOARD_W",  # power of boards at their limit, in fp32
        "clock.BOOST_ENERGY",  # published times of cublasSgemm on an H100
        "clock.NARROW_SM_ENERGY",  # V100 and A100 at their limit hold their clocks in fp32
    },
    "library": {  # tiles, threads, launches and limits that its code holds
        "attention_forward.CUDNN",
        "attention_forward.HEAD_STEP",
        "attention_loops.WIDEST_XQA_GROUP",
        "attention_loops.EXTEND_BLOCKS",
        "attention_loops.XQA_PART_KEYS, XQA_ROUNDS",
        "attention_loops.FEWEST_XQA_PARTS",
        "attention_loops.FEWEST_TENSOR_HEADS",
        "attention_loops.FLASHINFER_THREADS",
        "attention_loops.FILLED",
        "attention_loops.MOST_FLASH_SPLITS",
        "attention_loops.POWERS",
        "attention_loops.FLASH_DIMS",
        "attention_loops.FMHA_DIMS",
        "collectives.LARGEST_CUSTOM_BYTES",
        "collectives.GPUS_OF_A_TRAY",
        "collectives.MAX_GPUS_CUSTOM",
        "collectives.NETWORK_STEP_S",
        "collectives.RACK_HOPS",
        "collectives.IN_FLIGHT_BYTES",
        "collectives.ONE_SHOT_BYTES",
        "collectives.SYMMETRIC_BYTES",
        "collectives.SYMMETRIC_HOPS",
        "collectives.SYMMETRIC_RANKS",
        "embedding.THREADS",
        "gemm.TENSOR_TILES",
        "gemm.VECTOR_TILES",
        "gemm.BATCHED_TILES",
        "gemm.OWN_TILES",
        "gemm.K_STEP",
        "gemm.LEAST_SPLIT_K",
        "gemm.SCALE_KERNELS, SCALE_BYTES",  # TensorRT-LLM's quantize_e4m3_per_tensor: extremes, scale, values; its rows agree
        "kv_cache_write.THREADS",
        "layer_norm.THREADS",
        "layer_norm_backward.COLUMNS",
        "layer_norm_backward.THREADS",
        "memory_pass.BYTES_PER_BLOCK",
        "layer_norm.HOST_CALLS",
        "moe_tiles.K_STEP",
        "moe_tiles.STAGES",
        "moe_tiles.IMPLEMENTATIONS",
        "moe_tiles.MARLIN_ROWS",
        "moe_tiles.MARLIN_FILLED",
        "moe_tiles.LEAST_GROUPED_ROWS, MOST_GROUPED_ROWS",
        "moe_tiles.FIRST_CANDIDATES",
        "moe_tiles.OPENAI_ROWS",
        "moe_tiles._OPENAI",
        "moe_tiles.CANDIDATE_BYTES",
        "moe_tiles.AMPERE_STAGES",
        "moe_defaults.WARPS, STAGES",
        "moe_defaults.LITTLE_SHARED_BYTES",
        "optimizer_update.TENSORS_PER_LAUNCH",
        "rms_norm.THREADS",
        "rope.THREADS",
        "sampling.LAUNCHES",
        "silu_mul.THREADS",
        "softmax.IN_REGISTERS",
        "softmax.WIDE_THREADS",
        "streaming.SLICE",
        "streaming.BLOCK_THREADS",
    },
    "benchmark": {  # how rows were measured
        "cache.ROTATED_COPIES",
    },
    "count": {  # of instructions, operands or bytes
        "attention.SOFTMAX_FLOP",
        "attention.MASK_FLOP",  # positions, bounds, two comparisons and their ands, a choice, the reduction over the tile
        "attention.SIMT_FLOP",
        "attention.NARROWING_BYTES",
        "attention_loops.PAGED_STARTS",  # loads before the queries: the request's length and split, then its pages
        "attention_backward.PRODUCTS",
        "attention_backward.TRAFFIC",
        "elementwise.BINARY",
        "elementwise.UNARY",
        "elementwise.WITH_SCALAR",
        "elementwise.OPS",
        "mla.CAST_BYTES",
        "moe.WIDENING_FLOP",
        "moe.MARLIN_INTEGER_FLOP",
        "optimizer_update.KINDS",
        "quantize.SOURCE_BYTES",
        "quantize.OPS",
        "sampling.FP32_READS",
    },
    "published": {  # ratios that a library's authors measured
        "attention_backward.SLOWER",
        "collectives.NETWORK_FRACTION",
        "flash_attention_1.SLOWER_FORWARD",
        "flash_attention_1.SLOWER_BACKWARD",
    },
    "computing": {  # no part of the model
        "base.KEPT",  # the law of doubling: a promise to users, not a fact of kernels
        "base.LARGEST",
        "collectives.FULL_BOX",
        "gemm.NEVER",
        "expert_loads.MOST_EXPERTS",
        "expert_loads.NUM_DRAWS",
    },
}

# Broken numbers inside functions: rounding margins, the bracket of a search, the middle of a bin, half of what passes between two kernels.
INSIDE = {"expert_loads": {1e-12, 1e-9, 0.01, 0.5, 0.8}, "moe": {0.5}, "schedule": {1e-9}}


def numbers(node: ast.AST) -> list[float]:
    found = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return [value for value in found if isinstance(value, int | float) and not isinstance(value, bool)]


def at_module_level(source: str, stem: str) -> Iterator[tuple[str, ast.AST]]:
    """Names and values of assignments that hold a number."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None and numbers(statement.value):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            yield f"{stem}.{ast.unparse(target).strip('()')}", statement.value


def inside(source: str) -> set[float]:
    """Numbers that are not whole, in functions and classes."""
    blocks = [part for part in ast.parse(source).body if isinstance(part, ast.FunctionDef | ast.ClassDef)]
    return {value for block in blocks for value in numbers(block) if value % 1}


def unlisted(source: str, stem: str) -> list[str]:
    listed = set(CHOSEN).union(*SOURCES.values())
    names = [name for name, _ in at_module_level(source, stem) if name not in listed]
    return names + [f"{stem}: {value}" for value in sorted(inside(source) - INSIDE.get(stem, set()))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_number_in_the_models_has_a_source(path: Path):
    assert not unlisted(path.read_text(encoding="utf-8"), path.stem)


def test_a_hidden_multiplier_is_found():
    assert unlisted("SPILLS = 2.5", "attention_loops") == ["attention_loops.SPILLS"]
    assert unlisted("FACTORS: dict = {'sm_90': 3.0}", "gemm") == ["gemm.FACTORS"]
    assert unlisted("def f(x):\n    return 0.75 * x", "attention") == ["attention: 0.75"]
    assert unlisted("class Loop:\n    waits: float = 0.5", "attention_loops") == ["attention_loops: 0.5"]
    assert not unlisted("SOFTMAX_FLOP = 8.0\ndef f(x):\n    return 2.0 * x", "attention")


def test_the_list_holds_nothing_that_is_gone():
    there = {name for path in FILES for name, _ in at_module_level(path.read_text(encoding="utf-8"), path.stem)}
    assert set(CHOSEN).union(*SOURCES.values()) <= there


def test_the_analytic_model_holds_at_most_forty_numbers_and_says_why_of_each():
    tables = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.toml")}
    for name, table in tables.items():
        for key, entry in table.items():
            assert len(entry.get("why", "")) > 10, f"{name}.{key} does not say why"
    fitted, chosen = sum(map(len, tables.values())), sum(map(len, CHOSEN.values()))
    print(f"{fitted} fitted numbers: {', '.join(f'{name} {len(table)}' for name, table in tables.items())}; {chosen} chosen")
    assert fitted + chosen <= MOST
