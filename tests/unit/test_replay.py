"""Replaying a fixed catalogue: every question has an answer, and what differs is found and told."""

import pytest

from benchmarks import replay
from tilecast.kernels.registry import kernels


def test_the_catalogue_asks_families_that_exist_and_every_question_once() -> None:
    asked = [tuple(row.items()) for row in replay.questions()]
    assert len(asked) == len(set(asked)) > 200
    assert {str(row["family"]) for row in replay.questions()} <= set(kernels())


def test_the_files_as_they_are_answer_every_question() -> None:
    found = replay.answers(None)
    assert len(found) == len(list(replay.questions())) + len(replay.DEPLOYMENTS) + len(replay.STEPS)
    assert all(seconds > 0 for told in found.values() for seconds in told.values())
    unanswered = [question for question, told in found.items() if not told]
    assert unanswered == []


OLD = {"a": {"median_s": 1.0, "bound_s": 0.5}, "b": {"median_s": 2.0}, "gone": {"median_s": 1.0}}
NEW = {"a": {"median_s": 1.1, "bound_s": 0.5}, "b": {"median_s": 2.001}, "new": {"median_s": 1.0}}


def test_changes_above_the_tolerance_are_found_largest_first() -> None:
    found = replay.changes(OLD, NEW, 0.001)
    assert {change.question for change in found[:2]} == {"gone", "new"}
    assert [(change.question, change.column, pytest.approx(change.ratio)) for change in found[2:]] == [("a", "median_s", 1.1)]
    assert len(replay.changes(OLD, NEW, 0.0001)) == 4
    assert replay.changes(OLD, OLD, 0.0) == []


def test_the_report_counts_answers_and_says_how_many_it_left_out() -> None:
    text = replay.report(replay.changes(OLD, NEW, 0.001), 4, 2)
    assert text.splitlines()[0] == "3 of 4 answers changed."
    assert "and 1 more" in text and "gone" in text
    assert "+10.00 %" in replay.report(replay.changes(OLD, NEW, 0.001), 4, 9)


def test_an_unknown_revision_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main(["no-such-revision"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
