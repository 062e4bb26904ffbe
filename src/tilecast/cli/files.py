"""Files that a command writes because it was asked to: checked before the work, written whole or not at all."""

import os
from pathlib import Path

from tilecast.cli.output import say
from tilecast.errors import InvalidInput


def target(option: str, text: str | None, suffixes: tuple[str, ...]) -> Path | None:
    """The path after `option`, refused now if it could not be written later."""
    if text is None:
        return None
    path = Path(text)
    if path.suffix.lower() not in suffixes:
        raise InvalidInput(f"{option} {text} must end in {' or '.join(suffixes)}")
    if path.is_dir():
        raise InvalidInput(f"{option} {text} is a folder, not a file")
    if not path.parent.is_dir():
        raise InvalidInput(f"{option} {text}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise InvalidInput(f"{option} {text} cannot be written: permission denied")
    return path


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
        raise InvalidInput(f"{option} {path} cannot be written: {(problem.strerror or str(problem)).lower()}") from None
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)
    say(f"wrote {path}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
