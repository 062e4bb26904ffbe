"""GpuSpec: the nominal facts of one GPU, in SI units with dense rates, each with the source it rests on.

A spec holds what the vendor built or what rows show, never what somebody fitted. Peaks obey `peak = num_sms x rate per clock x clock`, so a
what-if part (`with_overrides`) is as consistent as a real one: change the clock or the SM count and the peaks follow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from tilecast import units
from tilecast.dtypes import DTYPES
from tilecast.errors import InvalidInput, SpecError
from tilecast.markup import html_table

SOURCE_KINDS = ("document", "measured", "derived", "recalled")
PEAK_TOLERANCE = 0.03  # vendors round, and print vector peaks for clocks a few percent off the highest one
BANDWIDTH_TOLERANCE = 0.015
INLINE_ECC_SHARE = 15 / 16  # of bytes that are data: a 48 GiB L40S reports 45 GiB
MULTICASTING = ("sm_90", "sm_100", "sm_103")  # clusters of SMs whose bulk copies reach all their members
PARTITIONED = ("sm_80", "sm_90", "sm_100", "sm_103")  # L2 in two halves since A100; RTX and inference parts have one
STARTING_EARLY = ("sm_100", "sm_103")  # the shortest products there take 0.8 us less than their clock accounts for

# The widest dense tensor core of each target, in 16-bit FLOP per clock per SM. Twice this is a sparse figure.
WIDEST_DENSE_16BIT = {
    "sm_70": 1024, "sm_75": 1024, "sm_80": 2048, "sm_86": 1024, "sm_89": 1024, "sm_90": 4096, "sm_100": 8192, "sm_103": 8192,
    "sm_120": 1024, "sm_121": 1024, "gfx908": 1024, "gfx90a": 1024, "gfx942": 2048, "gfx950": 4096,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Source:
    """Where a fact comes from: `document` (read), `measured` (rows that show it), `derived` (formula) or `recalled` (unchecked)."""

    kind: str
    text: str

    @classmethod
    def parse(cls, text: str) -> "Source":
        kind, _, rest = text.partition(":")
        if kind not in SOURCE_KINDS or not rest.strip():
            raise SpecError(f"source {text!r} must read 'KIND: text' with KIND one of {', '.join(SOURCE_KINDS)}")
        return cls(kind, rest.strip())

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def _fact(low: float, high: float, *, optional: bool = False) -> Any:
    """A numeric fact that must lie in [low, high]; a rate table's entries each must."""
    metadata = {"low": low, "high": high, "optional": optional}
    return field(default=None, metadata=metadata) if optional else field(metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU as a process sees it: one device (an MI250 entry is one of its two dies)."""

    id: str
    name: str
    vendor: str
    device_string: str  # what the driver reports, and what engines put into file names
    aliases: tuple[str, ...] = ()
    bare_names: tuple[str, ...] = ()  # ambiguous short names that mean this part by convention, said aloud when used
    arch: str
    die: str  # parts with the same die are siblings: never "unseen" to each other
    target: str  # compute capability (sm_90) or gfx target

    num_sms: int = _fact(1, 4096)
    base_clock_hz: float | None = _fact(1e8, 1e10, optional=True)
    boost_clock_hz: float = _fact(1e8, 1e10)  # the highest clock the device reports
    max_clock_hz: float | None = _fact(1e8, 1e10, optional=True)  # where cards run above that: GeForce
    tensor_clock_hz: float = _fact(1e8, 1e10)  # the clock that the published tensor peaks assume
    tdp_w: float | None = _fact(5, 1e4, optional=True)
    sustained_w: float | None = _fact(5, 1e4, optional=True)  # what the board keeps up for long, where it was measured to be less

    tensor_flop_per_s: Mapping[str, float] = _fact(1e11, 1e18)  # dense, by dtype; an absent dtype is not supported
    tensor_flop_per_clock_per_sm: Mapping[str, float] = _fact(1, 1 << 20)
    vector_flop_per_s: Mapping[str, float] = _fact(1e10, 1e16)
    vector_flop_per_clock_per_sm: Mapping[str, float] = _fact(1, 1 << 16)
    special_per_clock_per_sm: float | None = _fact(1, 1024, optional=True)  # exp2, log2, sin, rsqrt: results per clock

    l1_bytes_per_sm: int | None = _fact(1 << 10, 1 << 24, optional=True)  # L1 and shared memory together, where they share
    shared_bytes_per_sm: int | None = _fact(1 << 10, 1 << 24, optional=True)
    shared_bytes_per_block: int | None = _fact(1 << 10, 1 << 24, optional=True)  # the most one block may ask for
    shared_bytes_per_clock_per_sm: float | None = _fact(1, 4096, optional=True)
    register_bytes_per_sm: int | None = _fact(1 << 10, 1 << 24, optional=True)
    max_warps_per_sm: int | None = _fact(1, 256, optional=True)
    max_blocks_per_sm: int | None = _fact(1, 256, optional=True)
    warp_size: int = _fact(8, 128)

    l2_bytes: int = _fact(1 << 18, 1 << 32)
    l2_bytes_per_s: float | None = _fact(1e10, 1e15, optional=True)
    memory_side_cache_bytes: int | None = _fact(1 << 20, 1 << 34, optional=True)  # AMD's Infinity Cache, behind L2
    dram_kind: str
    dram_ecc: str | None = None  # "inline": check bits lie among the data; None: beside them, or none
    dram_bytes: int = _fact(1 << 28, 1 << 44)  # what the device reports, which is less than the label
    dram_bytes_per_s: float = _fact(1e10, 1e14)
    dram_bus_bits: int | None = _fact(32, 1 << 17, optional=True)
    dram_pin_bits_per_s: float | None = _fact(1e8, 1e11, optional=True)

    link_kind: str | None = None  # None: the card has no link of its own beside PCIe
    link_bytes_per_s: float | None = _fact(1e9, 1e13, optional=True)  # per GPU, one direction, all links together
    link_peers: int | None = _fact(1, 1024, optional=True)  # how many other GPUs it reaches without PCIe
    pcie_generation: int | None = _fact(1, 8, optional=True)  # None: not on PCIe (a chip-to-chip host link)
    pcie_lanes: int | None = _fact(1, 32, optional=True)

    sources: Mapping[str, Source] = field(repr=False)
    overrides: Mapping[str, float] = field(default_factory=dict)  # what a what-if changed, as given
    base: str = ""  # the catalogued part that a what-if file starts from

    def __hash__(self) -> int:
        """Enough to tell parts apart in a cache; the rate tables have no hash of their own."""
        return hash((self.id, self.num_sms, self.boost_clock_hz, self.dram_bytes_per_s))

    # ---- derived -------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> str:
        """The unit of "unseen generation": every GPU of one architecture."""
        return self.arch

    @property
    def label(self) -> str:
        """The id, and what a what-if changed: 'l40s with num_sms=200'."""
        changes = ", ".join(f"{fact}={value:g}" for fact, value in self.overrides.items())
        return f"{self.id} with {changes}" if changes else self.id

    @property
    def pcie_bytes_per_s(self) -> float | None:
        """One direction, nominal: 16 lanes of generation 5 are 64 GB/s."""
        if self.pcie_generation is None or self.pcie_lanes is None:
            return None
        return self.pcie_lanes * 0.25e9 * 2.0 ** (self.pcie_generation - 1)

    @property
    def dram_data_bytes_per_s(self) -> float:
        """Of the nominal bandwidth, what carries data: inline ECC keeps every sixteenth byte, of bandwidth as of capacity."""
        return self.dram_bytes_per_s * (INLINE_ECC_SHARE if self.dram_ecc == "inline" else 1.0)

    @property
    def multicasts(self) -> bool:
        """Whether one read of L2 may feed several SMs of a cluster; kernels for these copy and multiply asynchronously, and are others."""
        return self.target in MULTICASTING

    @property
    def starts_early(self) -> bool:
        """Whether a library's product is set up while the kernel before it still runs (programmatic dependent launch)."""
        return self.target in STARTING_EARLY

    @property
    def replays_graphs(self) -> bool:
        """Whether launches can be recorded and replayed without the host, which PyTorch does not do on Intel's GPUs."""
        return self.vendor != "intel"

    @property
    def l2_partitions(self) -> int:
        """Halves of L2, each with SMs of its own: what all SMs read lies in both."""
        return 2 if self.target in PARTITIONED else 1

    @property
    def highest_clock_hz(self) -> float:
        """No measurement runs above this; the bound assumes it."""
        return max(self.boost_clock_hz, self.tensor_clock_hz, self.max_clock_hz or 0.0)

    def tensor_rate(self, dtype: str) -> float:
        """Dense peak FLOP/s as published. Never guessed from another dtype's rate."""
        return self._rate(self.tensor_flop_per_s, dtype, "tensor")

    def vector_rate(self, dtype: str) -> float:
        return self._rate(self.vector_flop_per_s, dtype, "vector")

    def matrix_rate(self, dtype: str) -> float:
        """The fastest dense rate for a matrix product: tensor cores if they take `dtype`, else the vector units."""
        if dtype in self.tensor_flop_per_s:
            return self.tensor_flop_per_s[dtype]
        if dtype in self.vector_flop_per_s:
            return self.vector_flop_per_s[self.lanes(dtype)]
        return self._rate(self.tensor_flop_per_s, dtype, "matrix")

    def lanes(self, dtype: str) -> str:
        """In which format vector units multiply matrices of `dtype`: libraries widen 16 bits where fp32 is faster (P4: 64 times)."""
        rates = self.vector_flop_per_clock_per_sm
        return "fp32" if dtype in ("fp16", "bf16") and rates.get("fp32", 0.0) > rates[dtype] else dtype

    def highest_matrix_rate(self, dtype: str) -> float:
        """As `matrix_rate`, at the highest clock instead of the one the published peak assumes: what a bound needs."""
        if dtype in self.tensor_flop_per_s:
            return self.num_sms * self.tensor_flop_per_clock_per_sm[dtype] * self.highest_clock_hz
        if dtype in self.vector_flop_per_clock_per_sm:
            return self.num_sms * self.vector_flop_per_clock_per_sm[self.lanes(dtype)] * self.highest_clock_hz
        return self._rate(self.tensor_flop_per_s, dtype, "matrix")

    def ridge_flop_per_byte(self, dtype: str) -> float:
        """Arithmetic intensity above which a perfect kernel is bound by compute."""
        return self.matrix_rate(dtype) / self.dram_bytes_per_s

    def _rate(self, table: Mapping[str, float], dtype: str, kind: str) -> float:
        if dtype not in table:
            raise SpecError(f"{self.id} lists no {kind} rate for {dtype!r}; it has {', '.join(sorted(table)) or 'none'}")
        return table[dtype]

    def facts(self) -> dict[str, Any]:
        """Every fact by name, rate tables flattened to `tensor_flop_per_s.bf16`; absent ones are left out."""
        flat: dict[str, Any] = {}
        for name in FACTS:
            value = getattr(self, name)
            if isinstance(value, Mapping):
                flat |= {f"{name}.{dtype}": rate for dtype, rate in value.items()}
            elif value is not None:
                flat[name] = value
        return flat

    def source(self, fact: str) -> Source:
        """The source of a flattened fact; a rate may have its own or share its table's."""
        return self.sources[fact] if fact in self.sources else self.sources[fact.partition(".")[0]]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, in the order the fields are declared."""
        plain: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name == "sources":
                value = {fact: str(source) for fact, source in value.items()}
            elif isinstance(value, Mapping):
                value = dict(value)
            elif isinstance(value, tuple):
                value = list(value)
            plain[entry.name] = value
        return plain

    def _repr_html_(self) -> str:
        rows = [(fact, human_fact(fact, value), str(self.source(fact))) for fact, value in self.facts().items()]
        return html_table(f"{self.name} ({self.id})", ("fact", "value", "source"), rows)


TEXT_FACTS = ("vendor", "device_string", "arch", "die", "target", "dram_kind", "dram_ecc", "link_kind")
OPTIONAL_TEXTS = ("dram_ecc", "link_kind")
NUMERIC_FACTS = {entry.name: entry.metadata for entry in fields(GpuSpec) if "low" in entry.metadata}
RATE_TABLES = tuple(name for name in NUMERIC_FACTS if name.startswith(("tensor_flop", "vector_flop")))
INTEGER_FACTS = frozenset(entry.name for entry in fields(GpuSpec) if entry.name in NUMERIC_FACTS and "int" in str(entry.type))
FACTS = tuple(entry.name for entry in fields(GpuSpec) if entry.name in NUMERIC_FACTS or entry.name in TEXT_FACTS)
PLAIN_FIELDS = ("name", "aliases", "bare_names")


def human_fact(fact: str, value: Any) -> str:
    return value if isinstance(value, str) else units.human(fact.partition(".")[0], value)


# ---- from text to a spec -----------------------------------------------------------------------------------------


def number(fact: str, raw: object) -> float:
    """The SI value of one fact given as a number or as text with a unit, inside the range physics allows."""
    name = fact.partition(".")[0]
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise SpecError(f"{fact} = {raw!r} is not a number")
    try:
        value = units.parse(name, raw) if isinstance(raw, str) else float(raw)
    except InvalidInput as problem:
        raise SpecError(str(problem)) from None
    low, high = NUMERIC_FACTS[name]["low"], NUMERIC_FACTS[name]["high"]
    if not low <= value <= high:
        raise SpecError(f"{fact} = {raw!r} is outside {units.human(name, low)} to {units.human(name, high)}")
    if name in INTEGER_FACTS:
        if value != int(value):
            raise SpecError(f"{fact} = {raw!r} must be a whole number")
        return int(value)
    return value


def spec_from(id: str, table: Mapping[str, Any]) -> GpuSpec:
    """A checked spec from a parsed TOML table; every problem is one sentence naming the field and the value."""
    known = {*PLAIN_FIELDS, *FACTS, "sources"}
    for key in table:
        if key not in known:
            raise SpecError(_unknown_field(key, known))
    values: dict[str, Any] = {"id": id}
    for name in ("name", *TEXT_FACTS):
        if name not in table and name not in OPTIONAL_TEXTS:
            raise SpecError(f"{name} is missing")
        if name in table:
            if not isinstance(table[name], str) or not table[name]:
                raise SpecError(f"{name} = {table[name]!r} must be text")
            values[name] = table[name]
    for name in ("aliases", "bare_names"):
        given = table.get(name, [])
        if not isinstance(given, list) or not all(isinstance(entry, str) for entry in given):
            raise SpecError(f"{name} = {given!r} must be a list of names")
        values[name] = tuple(given)
    for name, metadata in NUMERIC_FACTS.items():
        if name in RATE_TABLES:
            values[name] = _rates(name, table.get(name))
        elif name in table:
            values[name] = number(name, table[name])
        elif not metadata["optional"]:
            raise SpecError(f"{name} is missing")
    values["sources"] = MappingProxyType({fact: Source.parse(str(text)) for fact, text in table.get("sources", {}).items()})
    spec = GpuSpec(**values)
    check_sources(spec)
    check_physics(spec)
    check_dense(spec)
    return spec


def _rates(name: str, given: object) -> Mapping[str, float]:
    if given is None:
        raise SpecError(f"the table [{name}] is missing")
    if not isinstance(given, Mapping):
        raise SpecError(f"{name} = {given!r} must be a table of rates by dtype")
    for dtype in given:
        if dtype not in DTYPES:
            raise SpecError(f"{name}.{dtype}: unknown dtype; allowed: {', '.join(DTYPES)}")
    return MappingProxyType({dtype: number(f"{name}.{dtype}", rate) for dtype, rate in given.items()})


def _unknown_field(key: str, known: set[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
    return f"unknown field {key!r} (names end in their SI unit); {hint}"


# ---- checks ------------------------------------------------------------------------------------------------------


def check_sources(spec: GpuSpec) -> None:
    """Every fact names its source, and no source names a fact that is not there."""
    facts = spec.facts()
    for fact in facts:
        if fact not in spec.sources and fact.partition(".")[0] not in spec.sources:
            raise SpecError(f"sources.{fact} is missing: every fact names where it comes from")
    known = {*facts, *(fact.partition(".")[0] for fact in facts)}
    for fact in spec.sources:
        if fact not in known:
            raise SpecError(f"sources.{fact} names a fact that the file does not state")


def peak_clock_hz(spec: GpuSpec, kind: str, dtype: str) -> float:
    """The clock a published peak assumes: the boost clock for vector and fp64 peaks, a lower one for the other tensor peaks."""
    return spec.tensor_clock_hz if kind == "tensor" and dtype != "fp64" else spec.boost_clock_hz


def check_physics(spec: GpuSpec) -> None:
    """Peaks are SMs x rate x clock, bandwidth is bus x data rate, and the small sizes fit into the large ones."""
    for kind in ("tensor", "vector"):
        peaks, rates = getattr(spec, f"{kind}_flop_per_s"), getattr(spec, f"{kind}_flop_per_clock_per_sm")
        if peaks.keys() != rates.keys():
            odd = sorted(peaks.keys() ^ rates.keys())[0]
            raise SpecError(f"{kind} rate of {odd} must stand both in {kind}_flop_per_s and in {kind}_flop_per_clock_per_sm")
        for dtype, peak in peaks.items():
            clock_hz = peak_clock_hz(spec, kind, dtype)
            product = spec.num_sms * rates[dtype] * clock_hz
            if abs(peak / product - 1) > PEAK_TOLERANCE:
                sparse = "; it looks like a sparse figure, and rates here are dense" if abs(peak / product - 2) < 0.1 else ""
                raise SpecError(
                    f"{kind}_flop_per_s.{dtype} = {peak:.4g} contradicts {spec.num_sms} SMs x {rates[dtype]:g} FLOP/clk x "
                    f"{clock_hz / 1e9:g} GHz = {product:.4g} (more than {PEAK_TOLERANCE:.0%} apart){sparse}"
                )
    if spec.dram_bus_bits is not None and spec.dram_pin_bits_per_s is not None:
        product = spec.dram_bus_bits * spec.dram_pin_bits_per_s / 8
        if abs(spec.dram_bytes_per_s / product - 1) > BANDWIDTH_TOLERANCE:
            raise SpecError(
                f"dram_bytes_per_s = {spec.dram_bytes_per_s:.4g} contradicts {spec.dram_bus_bits} bit x "
                f"{spec.dram_pin_bits_per_s / 1e9:g} Gbit/s = {product:.4g} (more than {BANDWIDTH_TOLERANCE:.1%} apart)"
            )
    if spec.dram_ecc not in (None, "inline"):
        raise SpecError(f"dram_ecc = {spec.dram_ecc!r} must be 'inline' or left out")
    for small, large in (
        ("base_clock_hz", "boost_clock_hz"),
        ("boost_clock_hz", "max_clock_hz"),
        ("sustained_w", "tdp_w"),
        ("shared_bytes_per_block", "shared_bytes_per_sm"),
        ("shared_bytes_per_sm", "l1_bytes_per_sm"),
        ("l2_bytes", "dram_bytes"),
        ("dram_bytes_per_s", "l2_bytes_per_s"),
    ):
        low, high = getattr(spec, small), getattr(spec, large)
        if low is not None and high is not None and low > high:
            raise SpecError(f"{small} = {low:g} is above {large} = {high:g}")
    if (spec.link_kind is None) != (spec.link_bytes_per_s is None):
        raise SpecError("link_kind and link_bytes_per_s are given together or not at all")


def check_dense(spec: GpuSpec) -> None:
    """A known tensor core cannot exceed its dense width; twice that is the sparse figure of a data sheet."""
    widest = WIDEST_DENSE_16BIT.get(spec.target)
    for dtype in ("fp16", "bf16"):
        rate = spec.tensor_flop_per_clock_per_sm.get(dtype)
        if widest is not None and rate is not None and rate > widest:
            raise SpecError(
                f"tensor_flop_per_clock_per_sm.{dtype} = {rate:g} is above {spec.target}'s dense {widest}; "
                "it looks like a sparse figure, and rates here are dense"
            )


# ---- what if -----------------------------------------------------------------------------------------------------


def with_overrides(spec: GpuSpec, overrides: Mapping[str, object]) -> GpuSpec:
    """`spec` with some facts changed and what follows from them recomputed, checked like any other spec.

    Peaks follow the SM count and their clock; the tensor clock follows the boost clock; the pin rate follows the bandwidth. What is
    overridden itself stays as given, and its per-clock rate follows instead; a power limit that was given is one that the board keeps up.
    """
    if isinstance(overrides, Mapping) and not overrides:
        return spec
    if not isinstance(overrides, Mapping) or not all(isinstance(fact, str) for fact in overrides):
        raise InvalidInput(f"overrides = {overrides!r} must name facts and their values, such as {{'num_sms': 144}}")
    asked = {fact: number(_known_fact(spec, fact), raw) for fact, raw in overrides.items()}
    facts = spec.facts()
    is_kept_up = "tdp_w" in asked and "sustained_w" not in asked and spec.sustained_w is not None
    if not is_kept_up and all(facts.get(fact) == value for fact, value in asked.items()):
        return spec  # it is so already
    plain: dict[str, Any] = {fact: value for fact, value in asked.items() if "." not in fact}
    changed = replace(spec, **plain)
    if "boost_clock_hz" in plain and "tensor_clock_hz" not in plain:
        changed = replace(changed, tensor_clock_hz=spec.tensor_clock_hz * changed.boost_clock_hz / spec.boost_clock_hz)
    if "boost_clock_hz" in plain and changed.base_clock_hz is not None and changed.base_clock_hz > changed.boost_clock_hz:
        changed = replace(changed, base_clock_hz=changed.boost_clock_hz)
    if "boost_clock_hz" in plain and "max_clock_hz" not in plain and spec.max_clock_hz is not None:
        changed = replace(changed, max_clock_hz=spec.max_clock_hz * changed.boost_clock_hz / spec.boost_clock_hz)
    if is_kept_up:
        changed = replace(changed, sustained_w=None)
    if "dram_bytes_per_s" in plain and "dram_pin_bits_per_s" not in plain and spec.dram_pin_bits_per_s is not None:
        changed = replace(changed, dram_pin_bits_per_s=spec.dram_pin_bits_per_s * changed.dram_bytes_per_s / spec.dram_bytes_per_s)
    for kind in ("tensor", "vector"):
        changed = replace(changed, **_rates_following(spec, changed, asked, kind))
    text = ", ".join(f"{fact}={value:g}" for fact, value in asked.items())
    moved = {fact for fact, value in changed.facts().items() if facts.get(fact) != value}
    sources = dict(spec.sources) | {fact: Source("derived", f"override: {text}") for fact in moved | asked.keys()}
    changed = replace(changed, sources=MappingProxyType(sources), overrides=MappingProxyType({**spec.overrides, **asked}))
    check_physics(changed)
    return changed


def _rates_following(spec: GpuSpec, changed: GpuSpec, asked: Mapping[str, float], kind: str) -> dict[str, Any]:
    """The peaks and per-clock rates of one kind of unit after SM count, clock, or some of themselves were overridden."""
    peaks, rates = f"{kind}_flop_per_s", f"{kind}_flop_per_clock_per_sm"

    def clocks_per_s(of: GpuSpec, dtype: str) -> float:  # of all SMs together
        return of.num_sms * peak_clock_hz(of, kind, dtype)

    peak = {dtype: value * clocks_per_s(changed, dtype) / clocks_per_s(spec, dtype) for dtype, value in getattr(spec, peaks).items()}
    rate = dict(getattr(spec, rates))
    for fact, value in asked.items():
        table, _, dtype = fact.partition(".")
        if table == rates:
            rate[dtype] = value
            peak[dtype] = asked.get(f"{peaks}.{dtype}", value * clocks_per_s(changed, dtype))
        elif table == peaks:
            peak[dtype] = value
            rate[dtype] = asked.get(f"{rates}.{dtype}", value / clocks_per_s(changed, dtype))
    return {peaks: MappingProxyType(peak), rates: MappingProxyType(rate)}


def _known_fact(spec: GpuSpec, fact: str) -> str:
    table, _, dtype = fact.partition(".")
    if table in RATE_TABLES and not dtype:
        raise SpecError(f"override {fact!r} needs a dtype: {table}.{next(iter(getattr(spec, table)), 'bf16')}=...")
    if table in RATE_TABLES and dtype not in DTYPES:
        raise SpecError(f"override {fact!r}: unknown dtype {dtype!r}; allowed: {', '.join(DTYPES)}")
    if table not in NUMERIC_FACTS or (dtype and table not in RATE_TABLES):
        raise SpecError(f"override: {_unknown_field(fact, set(NUMERIC_FACTS))}")
    return fact
