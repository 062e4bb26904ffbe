"""15 million public measurements in one schema: readers, quality, splits and the local store (extra `data`)."""

from importlib.util import find_spec

from tilecast.errors import MissingExtra

if find_spec("polars") is None:
    raise MissingExtra.of("data", "measured data")
