"""Small traces as a profiler would write them, made by hand; times in microseconds."""

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BF16 = "c10::BFloat16"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(int)"
GEMM = "nvjet_hsh_128x128_64x6_2x1_v_bz_TNT"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
MM = [[256, 1024], [1024, 1024]]
SUM = [[256, 1024], [256, 1024], []]


@dataclass
class Made:
    """A trace under construction. `call` adds an operator, the launch inside it and its kernel."""

    device: str | None = "NVIDIA H100 80GB HBM3"
    metadata: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    last_id: int = 0

    def event(self, category: str, name: str, start: float, length: float, tid: int = 1, **arguments: Any) -> None:
        named = {key.replace("_", " "): value for key, value in arguments.items()}
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": length, "args": named})

    def op(self, name: str, dims: list[Any] | None, start: float, length: float, id_: int, **more: Any) -> None:
        types = [BF16 if shape else "Scalar" for shape in dims or ()]
        shapes = {"Input Dims": dims, "Input type": more.pop("types", types), **more} if dims is not None else {}
        self.event("cpu_op", name, start, length)
        self.events[-1]["args"] = {"External id": id_, **shapes}

    def launch(self, start: float, correlation: int, id_: int | None = None, name: str = "cudaLaunchKernel") -> None:
        self.event("cuda_runtime", name, start, 2.0, correlation=correlation)
        if id_ is not None:
            self.events[-1]["args"]["External id"] = id_

    def kernel(self, name: str, start: float, length: float, correlation: int, id_: int | None = None, **more: Any) -> None:
        category = more.pop("category", "kernel")
        found = {"device": more.pop("device", 0), "stream": more.pop("stream", 7), "correlation": correlation, **more}
        self.event(category, name, start, length, tid=7)
        self.events[-1]["args"] = found | ({"External id": id_} if id_ is not None else {})

    def call(self, op: str, dims: list[Any] | None, kernel: str, start: float, length: float, wait: float = 5.0, **more: Any) -> None:
        """The operator starts at `start`, is launched 2 us later, and its kernel runs `wait` after the start."""
        self.last_id += 1
        shape = {"grid": more.pop("grid", [132, 1, 1]), "block": [128, 1, 1]}
        options = {name: more.pop(name) for name in ("types",) if name in more}
        strides = {"Input Strides": more.pop("strides")} if "strides" in more else {}
        scalars = {"Concrete Inputs": more.pop("scalars")} if "scalars" in more else {}
        self.op(op, dims, start, 4.5, self.last_id, **options, **strides, **scalars)
        self.launch(start + 2.0, self.last_id, self.last_id)
        self.kernel(kernel, start + wait, length, self.last_id, self.last_id, **shape, **more)

    def document(self) -> dict[str, Any]:
        named = {} if self.device is None else {"deviceProperties": [{"id": 0, "name": self.device}]}
        return {"schemaVersion": 1, **named, **self.metadata, "traceEvents": self.events, "traceName": "made by hand"}

    def write(self, path: Path) -> str:
        text = json.dumps(self.document())
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text, encoding="utf-8")
        return str(path)


def plain(layers: int = 4) -> Made:
    """Layers of a product and a sum, one behind the other, 100 us apart."""
    made = Made()
    for layer in range(layers):
        made.call("aten::mm", MM, GEMM, 100.0 * layer, 40.0)
        made.call("aten::add", SUM, ADD, 100.0 * layer + 50.0, 10.0)
    return made
