"""What a launch must do at the very least: FLOP and compulsory bytes, as expressions over a family's columns.

Each operand is read once and each result written once; nothing of tiles, caches or scheduling. A perfect kernel on a perfect GPU needs
max(FLOP / peak, bytes / bandwidth): the roofline that baselines use and that quality checks hold measurements against.
"""

from dataclasses import dataclass

import polars as pl

from tilecast.dtypes import QUANTISATIONS

ACTIVATION_BYTES = {name: quantisation.activation.bytes for name, quantisation in QUANTISATIONS.items()}
WEIGHT_BYTES = {name: quantisation.weight.bytes for name, quantisation in QUANTISATIONS.items()}
OUTPUT_BYTES = {name: max(2.0, min(4.0, quantisation.activation.bytes)) for name, quantisation in QUANTISATIONS.items()}
BINARY_OPS = ("add", "mul", "div", "pow", "residual_add")
MLA_DEFAULTS = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


@dataclass(frozen=True, slots=True)
class Work:
    """FLOP at the matrix or vector rate and bytes that must cross DRAM when nothing is cached."""

    flop: pl.Expr
    bytes: pl.Expr


def work(family: str) -> Work | None:
    """The least work of `family`'s rows; None for families that are not one kernel."""
    return _WORK.get(family)


def _size(table: dict[str, float], column: str = "dtype") -> pl.Expr:
    return pl.col(column).cast(pl.String).replace_strict(table, default=None, return_dtype=pl.Float64)


def _c(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Float64)


def _gemm() -> Work:
    m, n, k, batch = _c("m"), _c("n"), _c("k"), _c("batch")
    operands = m * k * _size(ACTIVATION_BYTES) + n * k * _size(WEIGHT_BYTES) + m * n * _size(OUTPUT_BYTES)
    return Work(2 * batch * m * n * k, batch * operands)


def _visible_pairs() -> pl.Expr:
    """Query-key pairs of one request: a causal query sees the keys up to its own, at most `window` of them."""
    q, kv = _c("q_len"), _c("kv_len")
    first = kv - q + 1  # keys the first query sees
    window = pl.col("window").cast(pl.Float64).fill_null(float("inf"))
    growing = (pl.min_horizontal(window, kv) - first + 1).clip(0, None)  # queries that see fewer keys than the window
    growing = pl.min_horizontal(growing, q)
    causal = growing * first + growing * (growing - 1) / 2 + (q - growing) * pl.min_horizontal(window, kv)
    return pl.when(pl.col("causal")).then(causal).otherwise(q * pl.min_horizontal(window, kv))


def _ragged(column: str) -> pl.Expr:
    return pl.col(column).str.json_decode(pl.List(pl.Int64)).list.sum().cast(pl.Float64)


def _attention() -> Work:
    heads, kv_heads, dim, batch, q = _c("num_heads"), _c("num_kv_heads"), _c("head_dim"), _c("batch"), _c("q_len")
    window = pl.col("window").cast(pl.Float64).fill_null(float("inf"))
    kv_read = pl.min_horizontal(_c("kv_len"), window + q - 1)
    is_ragged = pl.col("q_lens").is_not_null()
    # A ragged batch does at least the pairs of its new tokens against themselves; its lists are summed for the bytes.
    pairs = pl.when(is_ragged).then(_ragged("q_lens")).otherwise(batch * _visible_pairs())
    queries = pl.when(is_ragged).then(_ragged("q_lens")).otherwise(batch * q)
    keys = pl.when(is_ragged).then(_ragged("kv_lens")).otherwise(batch * kv_read)
    operands = 2 * queries * heads * dim * _size(OUTPUT_BYTES) + 2 * keys * kv_heads * dim * _size(ACTIVATION_BYTES, "kv_dtype")
    return Work(4 * pairs * heads * dim, operands)


def _mixed_attention() -> Work:
    heads, kv_heads, dim = _c("num_heads"), _c("num_kv_heads"), _c("head_dim")
    q, kv = _c("prefill_q_len").fill_null(0), _c("prefill_kv_len").fill_null(0)
    a, b = _c("decode_batch_a").fill_null(0), _c("decode_batch_b").fill_null(0)
    decode = a * _c("decode_kv_len_a").fill_null(0) + b * _c("decode_kv_len_b").fill_null(0)
    pairs = q * kv - q * (q - 1) / 2 + decode
    operands = 2 * (q + a + b) * heads * dim * _size(OUTPUT_BYTES) + 2 * (kv + decode) * kv_heads * dim * _size(
        ACTIVATION_BYTES, "kv_dtype"
    )
    return Work(4 * pairs * heads * dim, operands)


def _mla(*, absorbed: bool) -> Work:
    size = {name: _c(name).fill_null(default) for name, default in MLA_DEFAULTS.items()}
    batch, q, kv, heads = _c("batch"), _c("q_len"), _c("kv_len"), _c("num_heads")
    latent = size["kv_lora_rank"] + size["qk_rope_head_dim"]
    if absorbed:  # queries meet the latent cache itself
        wide, narrow, pairs = latent, size["kv_lora_rank"], q * kv
        cache = kv * latent * _size(ACTIVATION_BYTES, "kv_dtype")
    else:  # keys and values were expanded from the latent before
        wide, narrow = size["qk_nope_head_dim"] + size["qk_rope_head_dim"], size["v_head_dim"]
        pairs = q * kv - q * (q - 1) / 2
        cache = kv * heads * (wide + narrow) * _size(ACTIVATION_BYTES, "kv_dtype")
    operands = q * heads * (wide + narrow) * _size(OUTPUT_BYTES) + cache
    return Work(2 * batch * pairs * heads * (wide + narrow), batch * operands)


def _moe() -> Work:
    tokens, hidden, inter, tp, ep = _c("num_tokens"), _c("hidden_size"), _c("inter_size"), _c("tp"), _c("ep")
    experts, topk = _c("num_experts"), _c("topk")
    pairs = tokens * topk / ep  # of a token and an expert, on one rank
    width = inter / tp
    up = pl.when(pl.col("gated").fill_null(True)).then(2.0).otherwise(1.0)
    is_pass = {name: pl.col("moe_pass").cast(pl.String).is_in([name, "both"]) for name in ("w13", "w2")}
    columns = pl.when(is_pass["w13"]).then(up * width).otherwise(0.0) + pl.when(is_pass["w2"]).then(width).otherwise(0.0)
    active = pl.coalesce(_c("active_experts"), pl.min_horizontal(experts / ep, pairs))
    operands = active * hidden * columns * _size(WEIGHT_BYTES) + 2 * pl.min_horizontal(pairs, tokens) * hidden * _size(OUTPUT_BYTES)
    return Work(2 * pairs * hidden * columns, operands)


def _rows(passes: float | pl.Expr, columns: str = "cols") -> Work:
    """A kernel that streams rows x cols elements `passes` times, with a handful of FLOP each."""
    elements = _c("rows") * _c(columns)
    return Work(4 * elements, elements * passes * _size(OUTPUT_BYTES))


def _elementwise() -> Work:
    passes = pl.when(pl.col("op").cast(pl.String).is_in(BINARY_OPS)).then(3.0).otherwise(2.0)
    return Work(_c("numel"), _c("numel") * passes * _size(OUTPUT_BYTES))


def _rope() -> Work:
    elements = _c("rows") * (_c("num_heads") + _c("num_kv_heads")) * _c("head_dim")
    return Work(3 * elements, 2 * elements * _size(OUTPUT_BYTES))


def _kv_cache_write() -> Work:
    elements = 2 * _c("rows") * _c("num_kv_heads") * _c("head_dim")
    return Work(elements * 0, 2 * elements * _size(OUTPUT_BYTES))


def _conv2d() -> Work:
    batch, inputs, outputs, kernel = _c("batch"), _c("in_channels"), _c("out_channels"), _c("kernel_size")
    height, width = (((_c(side) + 2 * _c("padding") - kernel) / _c("stride")).floor() + 1 for side in ("height", "width"))
    operands = batch * inputs * _c("height") * _c("width") + outputs * inputs * kernel * kernel + batch * outputs * height * width
    return Work(2 * batch * outputs * height * width * inputs * kernel * kernel, operands * _size(OUTPUT_BYTES))


_WORK: dict[str, Work] = {
    "gemm": _gemm(),
    "attention_prefill": _attention(),
    "attention_decode": _attention(),
    "attention_mixed": _mixed_attention(),
    "mla_prefill": _mla(absorbed=False),
    "mla_decode": _mla(absorbed=True),
    "moe": _moe(),
    "rms_norm": _rows(pl.when(pl.col("residual").fill_null(False)).then(4.0).otherwise(2.0)),
    "layer_norm": _rows(2),
    "softmax": _rows(2),
    "silu_mul": _rows(3),
    "quantize": _rows(1.5),
    "sampling": _rows(1),
    "embedding": _rows(1),  # the rows written; the rows read may repeat
    "elementwise": _elementwise(),
    "rope": _rope(),
    "kv_cache_write": _kv_cache_write(),
    "conv2d": _conv2d(),
}
