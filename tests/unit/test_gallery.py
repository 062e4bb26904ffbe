"""Outputs in the documentation are renewed by running their commands."""

from benchmarks.gallery import renewed


def test_a_block_gets_what_its_command_prints():
    text = renewed("before\n```\n$ tilecast gpus show h100-sxm --as-python\nold\n```\nafter\n")
    assert text == "before\n```\n$ tilecast gpus show h100-sxm --as-python\nimport tilecast\ntilecast.gpu('h100-sxm')\n```\nafter\n"


def test_what_was_left_out_stays_out():
    text = renewed("```\n$ tilecast gpus show h100-sxm\nold\n...\nFacts\nold\n```\n")
    lines = text.splitlines()
    assert lines[3] == "..." and lines[4] == "Facts" and "num_sms" in text
    assert renewed(text) == text


def test_other_blocks_are_left_alone():
    assert renewed("```\nimport tilecast\n```\n") == "```\nimport tilecast\n```\n"
