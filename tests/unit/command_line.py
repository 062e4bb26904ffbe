"""A command run in this process, and what came of it; the fixture `tilecast` (conftest.py) gives it to tests."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Tilecast = Callable[..., Result]
