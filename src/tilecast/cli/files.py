"""Files and folders that a command writes because it was asked to: checked before the work, written whole or not at all."""

import os
from pathlib import Path

from tilecast.cli.output import say
from tilecast.errors import InvalidInput


def target(option: str, text: str | None, suffixes: tuple[str, ...]) -> Path | None:
    """The path after `option`, refused now if it could not be written later."""
    return None if text is None else target_file(option, text, suffixes)


def target_file(option: str, text: str, suffixes: tuple[str, ...] = ()) -> Path:
    """The same for an option that is always given; without `suffixes` any will do."""
    path = Path(text)
    if suffixes and path.suffix.lower() not in suffixes:
        raise InvalidInput(f"{option} {text!r} must end in {' or '.join(suffixes)}")
    if path.is_dir():
        raise InvalidInput(f"{option} {text!r} {'is a folder, not a file' if text else 'must name a file'}")
    if not path.parent.is_dir():
        raise InvalidInput(f"{option} {text!r}: there is no folder {path.parent}")
    _try(option, text, path.parent)
    if path.exists() and not os.access(path, os.W_OK):
        raise InvalidInput(f"{option} {text!r} cannot be written: permission denied")
    return path


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


def write_whole(option: str, path: Path, text: str) -> None:
    """Under another name first, so that a cut leaves what was there."""
    import tempfile

    draft: Path | None = None
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".partial-", delete=False) as file:
            draft = Path(file.name)
            file.write(text)
        draft.chmod(0o666 & ~_umask())
        draft.replace(path)
    except OSError as problem:
        raise InvalidInput(unwritten(option, path, problem)) from None
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)
    say(f"wrote {path}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
