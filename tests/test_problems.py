"""Generated word problems: splits that share nothing, answers that are right, streams that repeat."""

from __future__ import annotations

import itertools
import re

import pytest

from harness import problems
from harness.errors import UserError

STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


def masked(text: str) -> str:
    """The text with names and things blanked: what remains is wording and numbers."""
    words = (*problems.NAMES, *problems.THINGS, *problems.GOODS, *problems.BOXES, *problems.PLACES, *problems.VEHICLES)
    return re.sub(rf"\b({'|'.join(words)})\b", "_", text)


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[problems.Problem]]:
    return {split: problems.generate(split, 3000, seed=3) for split in problems.SPLITS}


def test_splits_share_no_problem_even_with_other_names(drawn: dict[str, list[problems.Problem]]) -> None:
    for one, other in itertools.combinations(problems.SPLITS, 2):
        assert not {p.signature for p in drawn[one]} & {p.signature for p in drawn[other]}
        assert not {masked(p.question) for p in drawn[one]} & {masked(p.question) for p in drawn[other]}


def test_signature_holds_every_number_of_the_question(drawn: dict[str, list[problems.Problem]]) -> None:
    for problem in drawn["train"]:
        in_question = re.findall(r"\d+", problem.question)
        assert sorted(re.findall(r"\d+", problem.signature)) == sorted(in_question), problem


def test_worked_steps_are_right_and_lead_to_the_result(drawn: dict[str, list[problems.Problem]]) -> None:
    for problem in itertools.chain(*drawn.values()):
        *lines, last = problem.answer.split("\n")
        known = set(re.findall(r"\d+", problem.question)) | {"2"}  # doubling is told without its number
        for line in lines:
            steps = STEP.findall(line)
            assert len(steps) == 1, line
            left, operator, right, result = steps[0]
            assert {left, right} <= known, (problem.question, line)
            exact = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__truediv__}[operator]
            assert exact(int(left), int(right)) == int(result), line
            assert int(result) > 0
            known.add(result)
        assert last == f"#### {result}"
        assert problem.result == int(result)


def test_two_to_five_steps_in_every_kind_of_story(drawn: dict[str, list[problems.Problem]]) -> None:
    steps = [p.answer.count("\n") for p in drawn["train"]]
    assert set(steps) == {2, 3, 4, 5}
    kinds = {p.signature.split(":")[0] for p in drawn["train"]}
    assert kinds == {"boxes", "days", "more", "times", "buy", "wage", "leg", "book"}


def test_same_seed_same_stream_and_longer_extends_shorter() -> None:
    assert problems.generate("test", 50, seed=1) == problems.generate("test", 80, seed=1)[:50]
    assert problems.generate("test", 50, seed=1) != problems.generate("test", 50, seed=2)


def test_stream_is_the_same_on_every_machine() -> None:
    """The committed checkpoints were trained on exactly this stream; a change here makes their data hash a lie."""
    first = problems.generate("train", 1, seed=0)[0]
    assert first.question == (
        "Mia has 26 coins. Ivy has 40 more coins than Mia. Then Ivy gets 32 more coins. "
        "At last Ivy shares all the coins equally among 2 friends. How many coins does each friend get?"
    )
    assert problems.generate("train", 1000, seed=0)[-1].result == 7


def test_questions_of_one_list_are_distinct(drawn: dict[str, list[problems.Problem]]) -> None:
    for found in drawn.values():
        assert len({p.question for p in found}) == len(found)


def test_unknown_split_is_named() -> None:
    with pytest.raises(UserError, match="split='dev'.*train, validation, test"):
        problems.generate("dev", 1)
