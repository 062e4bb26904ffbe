"""Which library a kernel comes from and what it does, by its name alone: kernel_names.toml, and the rules of a user in front of it."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilecast.errors import InvalidInput, MissingData

TABLE = Path(__file__).with_name("kernel_names.toml")
FIELDS = {"name": str, "library": str, "family": str, "identity": str, "helper": bool}
COMMUNICATION = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv", "all_to_all", "collective"})
LONGEST_SHOWN = 60
# Template arguments that say what a kernel computes.
TELLING = re.compile(r"Functor|_kernel_cuda|KernelImpl$|_kernel_impl$|^cutlass_|Ops$|_kernel$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    pattern: re.Pattern[str]
    library: str
    family: str
    identity: str | None = None
    helper: bool = False

    @property
    def communicates(self) -> bool:
        return self.family in COMMUNICATION


@cache
def own_rules() -> tuple[Rule, ...]:
    return read_rules(TABLE)


def read_rules(path: str | Path) -> tuple[Rule, ...]:
    """The rules of a file, in its order."""
    try:
        entries = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("kernel", [])
    except FileNotFoundError:
        raise MissingData(f"no file {path}") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise MissingData(f"cannot read {path}: {problem}") from None
    except tomllib.TOMLDecodeError as problem:
        raise InvalidInput(f"{path} is not valid TOML: {problem}") from None
    if not isinstance(entries, list) or not entries:
        raise InvalidInput(f"{path} has no [[kernel]] rules; each has name, library and family")
    return tuple(_rule(entry, f"rule {place} of {path}") for place, entry in enumerate(entries, 1))


def _rule(entry: dict[str, object], where: str) -> Rule:
    for name, value in entry.items():
        if name not in FIELDS or not isinstance(value, FIELDS[name]):
            raise InvalidInput(f"{where}: {name} = {value!r} is not one of {', '.join(FIELDS)}, texts but for helper")
    if missing := [name for name in ("name", "library", "family") if name not in entry]:
        raise InvalidInput(f"{where} lacks {' and '.join(missing)}")
    try:
        pattern = re.compile(str(entry["name"]))
    except re.error as problem:
        raise InvalidInput(f"{where}: name = {entry['name']!r} is no regular expression: {problem}") from None
    identity = entry.get("identity")
    return Rule(
        pattern=pattern,
        library=str(entry["library"]),
        family=str(entry["family"]),
        identity=None if identity is None else str(identity),
        helper=bool(entry.get("helper", False)),
    )


def recognise(name: str, rules: Sequence[Rule]) -> Rule | None:
    return next((rule for rule in rules if rule.pattern.search(name)), None)


def short(name: str) -> str:
    """A kernel's name as a person says it: no return type, namespaces, template arguments or parameters, but what it computes."""
    plain = name.replace("(anonymous namespace)::", "").replace("at::native::", "")
    if plain.startswith("_ZN"):
        plain = _innermost(plain)
    elif match := re.match(r"(?:void |std::enable_if<.*?>::type )?([\w:]+)\s*<", plain):
        inner = next((word for word in re.findall(r"[A-Za-z_]\w+", plain[match.end() :]) if TELLING.search(word)), None)
        plain = match.group(1).rpartition("::")[2] + (f"<{inner}>" if inner else "")
    elif not plain.startswith("Mem"):
        plain = re.sub(r"^void |\(.*$", "", plain).rpartition("::")[2]
    return plain if len(plain) <= LONGEST_SHOWN else plain[: LONGEST_SHOWN - 1] + "…"


def _innermost(mangled: str) -> str:
    """The last name of a mangled one: _ZN5aiter4normI... is norm."""
    names, rest = [], mangled[3:]
    while match := re.match(r"(\d+)", rest):
        length = int(match.group(1))
        names.append(rest[match.end() : match.end() + length])
        rest = rest[match.end() + length :]
    inner = next((word for word in re.findall(r"\d+([A-Z][A-Za-z]+Kernel)I", rest)), None)
    return inner or (names[-1] if names else mangled)
