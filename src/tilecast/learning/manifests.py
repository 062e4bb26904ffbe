"""What is known of the shipped weights without loading them: their manifests, and one hash for all of them."""

import hashlib
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("artifacts")


@cache
def artifacts_hash() -> str:
    """Eight hex digits that change when any shipped weight does; "none" where predictions are physics alone."""
    manifests = sorted(FOLDER.glob("*.json"))
    if not manifests:
        return "none"
    digest = hashlib.sha256()
    for path in manifests:
        digest.update(path.name.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()[:8]
