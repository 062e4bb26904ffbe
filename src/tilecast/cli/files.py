"""Files and folders that a command writes because it was asked to: checked before the work, written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tilecast.cli.output import say
from tilecast.errors import InvalidInput


def target(option: str, text: str | None, suffixes: tuple[str, ...], *, reads: tuple[str | None, ...] = ()) -> Path | None:
    """The path after `option`, refused now if it could not be written later."""
    return None if text is None else target_file(option, text, suffixes, reads=reads)


def target_file(option: str, text: str, suffixes: tuple[str, ...] = (), *, reads: tuple[str | None, ...] = ()) -> Path:
    """The same for an option that is always given; without `suffixes` any will do. What the command `reads` is never written over."""
    if suffixes and Path(text).suffix.lower() not in suffixes:
        raise InvalidInput(f"{option} {text!r} must end in {' or '.join(suffixes)}")
    try:
        if Path(text).is_dir():
            raise InvalidInput(f"{option} {text!r} {'is a folder, not a file' if text else 'must name a file'}")
        path = _place(option, Path(text))
        if not path.parent.is_dir():
            raise InvalidInput(f"{option} {text!r}: there is no folder {path.parent}")
        exists = path.exists()
    except OSError as problem:
        raise InvalidInput(unwritten(option, text, problem)) from None
    if same := next((given for given in reads if given and _is_same(path, given)), None):
        raise InvalidInput(f"{option} {text!r} is what is read, {same}: name another file")
    _try(option, text, path.parent)
    if exists and not os.access(path, os.W_OK):
        raise InvalidInput(f"{option} {text!r} cannot be written: permission denied")
    return path


def _place(option: str, path: Path) -> Path:
    """Where the file itself is, behind links. A device or a pipe would be replaced by a file, not written to."""
    if path.exists() and not path.is_file():
        raise InvalidInput(f"{option} {str(path)!r} is a device, a pipe or a socket: name a file")
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _is_same(path: Path, read: str) -> bool:
    """Whether `path` is the file `read`, or the config.json of that folder."""
    return any(os.path.realpath(path) == os.path.realpath(given) for given in (read, Path(read) / "config.json"))


def target_folder(option: str, text: str, *, made: bool = False) -> Path:
    """A folder that files can be written into; it may have to be `made` first."""
    path = Path(text)
    existing = next((parent for parent in (path, *path.parents) if parent.exists()), Path())
    if not made and not path.is_dir():
        raise InvalidInput(f"{option} {text!r} is no folder")
    if not existing.is_dir():
        raise InvalidInput(f"{option} {text!r}: {existing} is a file, not a folder")
    _try(option, text, existing)
    return path


def _try(option: str, text: str, place: Path) -> None:
    """Permissions alone do not tell: a disk may be mounted to be read, and root may do everything but write to one."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as problem:
        raise InvalidInput(unwritten(option, text, problem)) from None


def unwritten(option: str, text: object, problem: OSError) -> str:
    return f"{option} {str(text)!r} cannot be written: {(problem.strerror or str(problem)).lower()}"


@contextmanager
def written_whole(option: str, path: Path) -> Iterator[Path]:
    """Another name to write under first, so that a cut leaves what was there."""
    import tempfile

    draft: Path | None = None
    try:
        path = _place(option, path)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
        os.close(handle)
        draft = Path(name)
        yield draft
        draft.chmod(0o666 & ~_umask())
        draft.replace(path)
    except OSError as problem:
        raise InvalidInput(unwritten(option, path, problem)) from None
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)


def write_whole(option: str, path: Path, text: str) -> None:
    with written_whole(option, path) as draft:
        draft.write_text(text, encoding="utf-8")
    say(f"wrote {path}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
