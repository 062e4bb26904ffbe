"""Number formats, by name and width; a quantisation names what is stored and what is computed."""

from dataclasses import dataclass

from tilecast.errors import UnknownName


@dataclass(frozen=True, slots=True)
class DType:
    """A number format. `bits` counts the element alone; `scale_bits` what block scales add to each element."""

    name: str
    bits: int
    scale_bits: float = 0.0

    @property
    def bytes(self) -> float:
        return (self.bits + self.scale_bits) / 8


FP64, FP32, TF32 = DType("fp64", 64), DType("fp32", 32), DType("tf32", 32)
FP16, BF16 = DType("fp16", 16), DType("bf16", 16)
FP8, INT8, INT4 = DType("fp8", 8), DType("int8", 8), DType("int4", 4)
NVFP4 = DType("nvfp4", 4, scale_bits=0.5)  # one fp8 scale for 16 elements
MXFP4 = DType("mxfp4", 4, scale_bits=0.25)  # one e8m0 scale for 32 elements
MXFP8 = DType("mxfp8", 8, scale_bits=0.25)

DTYPES = {dtype.name: dtype for dtype in (FP64, FP32, TF32, FP16, BF16, FP8, INT8, INT4, NVFP4, MXFP4, MXFP8)}


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How a matrix product is held and computed: the activations, the weights, and the rate the tensor cores run at."""

    name: str
    activation: DType
    weight: DType
    compute: DType


def _same(dtype: DType) -> Quantisation:
    return Quantisation(dtype.name, dtype, dtype, dtype)


QUANTISATIONS = {
    quantisation.name: quantisation
    for quantisation in (
        *map(_same, (FP64, FP32, TF32, FP16, BF16, FP8, INT8, NVFP4, MXFP4)),
        # Activations arrive in 16 bits and are quantised by the kernels that the measurement includes.
        Quantisation("fp8_static", FP8, FP8, FP8),
        Quantisation("fp8_block", FP8, DType("fp8_block", 8, scale_bits=32 / (128 * 128)), FP8),
        Quantisation("int8_wo", BF16, INT8, BF16),
        Quantisation("int4_wo", BF16, DType("int4_wo", 4, scale_bits=16 / 128), BF16),
        Quantisation("w4afp8", FP8, DType("w4afp8", 4, scale_bits=16 / 128), FP8),
        Quantisation("w4a16_mxfp4", BF16, MXFP4, BF16),
        Quantisation("w4a8_mxfp4_mxfp8", MXFP8, MXFP4, FP8),
        Quantisation("int8_sq", INT8, INT8, INT8),
    )
}


def dtype(name: str) -> DType:
    if not isinstance(name, str) or name not in DTYPES:
        raise UnknownName.among("dtype", name, DTYPES)
    return DTYPES[name]


def quantisation(name: str) -> Quantisation:
    if not isinstance(name, str) or name not in QUANTISATIONS:
        raise UnknownName.among("dtype", name, QUANTISATIONS)
    return QUANTISATIONS[name]
