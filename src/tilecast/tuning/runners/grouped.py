# mypy: ignore-errors
"""A grouped product in Triton, as the engines' fused MoE kernels do it; importing this needs Triton."""

import triton
import triton.language as tl


@triton.jit
def grouped(
    tokens, weights, output, token_scales, weight_scales, sorted_rows, tile_experts, num_rows, N, K, topk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    tiles_m = tl.num_programs(0) // tl.cdiv(N, BLOCK_N)
    tiles_n = tl.cdiv(N, BLOCK_N)
    in_group = GROUP_M * tiles_n
    group = program // in_group
    first = group * GROUP_M
    height = tl.minimum(tiles_m - first, GROUP_M)
    tile_m = first + (program % in_group) % height
    tile_n = (program % in_group) // height
    rows = tl.load(sorted_rows + tile_m * BLOCK_M + tl.arange(0, BLOCK_M))
    is_row = rows < num_rows
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    expert = tl.load(tile_experts + tile_m)
    depth = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        in_depth = start + depth < K
        left = tl.load(tokens + (rows // topk)[:, None] * K + (start + depth)[None, :], mask=is_row[:, None] & in_depth[None, :], other=0.0)
        right = tl.load(
            weights + expert * N * K + columns[None, :] * K + (start + depth)[:, None],
            mask=in_depth[:, None] & (columns < N)[None, :], other=0.0,
        )  # fmt: skip
        if SCALED:  # a scale for 128 elements of a row, and for 128 x 128 of a matrix; BLOCK_K divides 128
            row_scale = tl.load(token_scales + (rows // topk) * tl.cdiv(K, SCALED) + start // SCALED, mask=is_row, other=0.0)
            matrix = weight_scales + expert * tl.cdiv(N, SCALED) * tl.cdiv(K, SCALED)
            column_scale = tl.load(matrix + (columns // SCALED) * tl.cdiv(K, SCALED) + start // SCALED, mask=columns < N, other=0.0)
            total += tl.dot(left, right) * row_scale[:, None] * column_scale[None, :]
        else:
            total += tl.dot(left, right)
    tl.store(
        output + rows[:, None] * N + columns[None, :], total.to(output.dtype.element_ty), mask=is_row[:, None] & (columns < N)[None, :]
    )
