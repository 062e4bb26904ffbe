"""Every rule of the table of kernel names: it says something, no earlier rule says the same, and what it names can be asked for."""

import pytest

from tilecast.diagnosis.kernel_names import COMMUNICATION, own_rules
from tilecast.diagnosis.op_shapes import COLLECTIVES, FAMILIES, IDENTITIES
from tilecast.kernels.collectives import IDENTITIES as COLLECTIVE_IDENTITIES
from tilecast.kernels.gemm import NEWEST_SGLANG, OWN_TILES
from tilecast.kernels.moe_tiles import IMPLEMENTATIONS

RULES = own_rules()
# Named, and not priced: there is no model of such kernels, or their sizes never show.
NOT_PRICED = {
    "mla", "dequantize", "sparse index", "bookkeeping", "sort or scan", "state space", "layout", "host copy", "memset", "copy",
    "collective", "pooling and sampling",
}  # fmt: skip
KNOWN = {
    "gemm": {*NEWEST_SGLANG.values(), *OWN_TILES, "triton"},
    "attention": set(IDENTITIES),
    "moe": set(IMPLEMENTATIONS),
    **dict.fromkeys(COMMUNICATION, frozenset(COLLECTIVE_IDENTITIES)),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.pattern.pattern[:40])
def test_a_rule_names_a_family_and_an_identity_that_exist(rule):
    assert rule.library
    assert rule.family in {*FAMILIES, *COLLECTIVES, *NOT_PRICED}
    assert rule.identity is None or rule.identity in KNOWN[rule.family]


def test_no_rule_is_there_twice():
    patterns = [rule.pattern.pattern for rule in RULES]
    assert len(patterns) == len(set(patterns))


def test_every_family_with_a_rule_for_its_shapes_has_a_name():
    assert set(FAMILIES) | set(COLLECTIVES) <= {rule.family for rule in RULES}
