"""The store on a toy source: made once, made anew when its source changes, never half made."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest

from tilecast.datasets import store
from tilecast.datasets.schema import conform, schema
from tilecast.datasets.sources.base import Table
from tilecast.errors import MissingData, UnknownName


@dataclass
class Toy:
    """Two GEMMs on H100: one of 10 us, and one of 0 us that quality must set aside."""

    root: Path
    name: str = "toy"
    licence: str = "CC0"
    home: str = "nowhere"
    version: str = "1"
    reads: int = 0
    absent: str = ""
    crash: Exception | None = None
    families: list[str] = field(default_factory=lambda: ["gemm"])

    def locate(self) -> Path:
        if self.absent:
            raise MissingData(self.absent)
        return self.root

    def fingerprint(self, root: Path) -> str:
        return self.version

    def tables(self, root: Path) -> list[Table]:
        return [Table("toy.csv", family) for family in self.families]

    def read(self, root: Path, table: Table) -> pl.DataFrame:
        self.reads += 1
        if self.crash:
            raise self.crash
        rows = pl.DataFrame({"origin_row": [0, 1], "m": [1, 2], "n": [384, 384], "k": [256, 256], "latency_s": [10e-6, 0.0]})
        return conform(
            rows, "gemm", gpu="h100-sxm", dtype="bf16", timer="graph", cache="warm", batch=1, source=self.name, licence=self.licence,
            origin=table.name,
        )  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def toy(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    entry = Toy(tmp_path)
    monkeypatch.setattr(store, "sources", lambda: {"toy": entry})
    return entry


def stored(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(MissingData) as caught:
        ask()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_first_use_makes_the_file_and_the_second_does_not_read_the_source(toy: Toy, cache: Path) -> None:
    first = store.rows("gemm")
    assert [path.parent for path in stored(cache)] == [cache / "store" / "toy"]
    assert toy.reads == 1
    again = store.rows("gemm")
    assert toy.reads == 1
    assert again.equals(first)


def test_a_changed_source_is_read_again_and_its_stale_file_removed(toy: Toy, cache: Path) -> None:
    store.rows("gemm")
    old = stored(cache)
    toy.version = "2"
    store.rows("gemm")
    assert toy.reads == 2
    assert len(stored(cache)) == 1
    assert stored(cache) != old


def test_another_familys_file_is_not_stale(toy: Toy, cache: Path) -> None:
    other = cache / "store" / "toy" / "moe-0123456789ab.parquet"
    other.parent.mkdir(parents=True)
    other.touch()
    store.rows("gemm")
    assert other.exists()


def test_a_crash_while_reading_leaves_no_file_and_the_next_use_works(toy: Toy, cache: Path) -> None:
    toy.crash = RuntimeError("the reader failed")
    with pytest.raises(RuntimeError, match="the reader failed"):
        store.rows("gemm")
    assert stored(cache) == []
    toy.crash = None
    assert store.rows("gemm").height == 1


def test_a_disk_that_fills_up_while_writing_is_one_sentence_and_leaves_no_file(
    toy: Toy, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(frame: pl.DataFrame, path: Path, **options: object) -> None:
        path.write_bytes(b"PAR1 half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", half)
    assert refusal(lambda: store.rows("gemm")).endswith(".parquet: No space left on device")
    assert stored(cache) == []


def test_a_cache_that_cannot_be_written_is_one_sentence(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "a file"))
    assert refusal(lambda: store.rows("gemm")).startswith(f"cannot make the folder {tmp_path / 'a file' / 'store' / 'toy'}: ")


def test_usable_rows_leave_out_what_was_set_aside_and_all_rows_say_why(toy: Toy) -> None:
    assert store.rows("gemm").select("m", "set_aside").rows() == [(1, None)]
    assert store.rows("gemm", usable=False).select("m", "set_aside").rows() == [(1, None), (2, "no time")]
    assert store.scan("gemm").select("m").collect()["m"].to_list() == [1, 2]


def test_two_sources_are_one_frame_and_names_choose_among_them(
    toy: Toy, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Toy(tmp_path, name="other")
    monkeypatch.setattr(store, "sources", lambda: {"toy": toy, "other": other})
    assert store.rows("gemm")["source"].to_list() == ["toy", "other"]
    assert store.rows("gemm", ["other"])["source"].to_list() == ["other"]


def test_a_family_without_rows_is_an_empty_frame_of_its_schema(toy: Toy) -> None:
    rows = store.rows("softmax")
    assert rows.height == 0
    assert rows.columns == list(schema("softmax"))
    assert store.scan("softmax").collect().columns == list(schema("softmax"))
    assert store.families("toy") == ["gemm"]


def test_an_absent_source_is_passed_over_unless_it_is_named(toy: Toy, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Toy(tmp_path, name="gone", absent="set $GONE")
    monkeypatch.setattr(store, "sources", lambda: {"gone": gone, "toy": toy})
    assert store.rows("gemm")["source"].to_list() == ["toy"]
    assert refusal(lambda: store.rows("gemm", ["gone", "toy"])) == "set $GONE"
    assert {name: str(root) for name, root in store.available().items()} == {"gone": "set $GONE", "toy": str(tmp_path)}


def test_no_data_at_all_says_what_to_do(toy: Toy) -> None:
    toy.absent = "not here"
    found = refusal(lambda: store.rows("gemm"))
    assert "tilecast data pull" in found
    assert "$TILECAST_DATA" in found


def test_an_unknown_family_or_source_gets_the_nearest_name(toy: Toy) -> None:
    with pytest.raises(UnknownName, match=r"^unknown family 'gem': did you mean gemm\?$"):
        store.rows("gem")
    with pytest.raises(UnknownName, match=r"^unknown data source 'toys': did you mean toy\?$"):
        store.rows("gemm", ["toys"])


def test_progress_counts_the_tables_to_the_last(toy: Toy) -> None:
    toy.families = ["gemm", "gemm", "gemm"]
    told: list[tuple[str, int, int]] = []
    store.rows("gemm", progress=lambda *step: told.append(step))
    assert told == [("toy gemm", done, 3) for done in range(4)]


def test_every_file_of_the_sources_folder_is_a_source_by_its_own_name() -> None:
    assert "aiconfigurator" in store.sources()
    for name, entry in store.sources().items():
        assert entry.name == name
        assert entry.licence
        assert entry.home
