"""Seeded arithmetic stories with worked answers in GSM8K's style, learnable by a model of 4M parameters.

Wording is templated and therefore predictable, numbers are not: a model that decodes several tokens per forward can
be sure of the words and has to work for the digits. Each problem has a signature (its structure and its numbers,
without names and things); a hash of the signature decides the split, so no test problem is a renamed training problem.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from harness.errors import UserError

SPLITS = ("train", "validation", "test")

NAMES = (
    "Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Ivy", "Jack", "Kate", "Leo", "Mia", "Noah",
    "Olivia", "Paul", "Rosa", "Sam", "Tina", "Victor",
)  # fmt: skip
THINGS = (
    "apples", "beads", "books", "buttons", "cards", "coins", "cookies", "marbles", "pencils", "shells", "stamps",
    "stickers",
)  # fmt: skip
GOODS = ("hats", "lamps", "cups", "bags", "toys", "plants", "ropes", "kites")
BOXES = ("boxes", "bags", "jars", "trays")
PLACES = ("farm", "shop", "school", "library", "bakery", "garden")
VEHICLES = ("train", "bus", "truck", "boat")


@dataclass(frozen=True)
class Problem:
    """A question, its worked answer (last line ``#### <number>``), and the signature that decided its split."""

    question: str
    answer: str
    signature: str

    @property
    def result(self) -> int:
        """The number after ``####``."""
        return int(self.answer.rsplit("#### ", 1)[1])


@dataclass
class Story:
    """A problem under construction: sentences told, steps worked, and the numbers that make its signature."""

    rng: random.Random
    told: list[str] = field(default_factory=list)
    worked: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)

    def number(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def tell(self, kind: str, sentence: str, *numbers: int) -> None:
        """Add a sentence to the question; ``kind`` and its numbers enter the signature."""
        self.told.append(sentence)
        self.signature.append(":".join([kind, *map(str, numbers)]))

    def work(self, left: int, operator: str, right: int, sentence: str) -> int:
        """Add a worked step; ``{}`` in the sentence becomes ``left operator right = result``. Returns the result."""
        result = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[operator]
        self.worked.append(sentence.format(f"{left} {operator} {right} = {result}"))
        return result

    def finish(self, question: str, result: int) -> Problem:
        return Problem(
            question=" ".join([*self.told, question]),
            answer="\n".join([*self.worked, f"#### {result}"]),
            signature=" ".join(self.signature),
        )


def collection(s: Story) -> Problem:
    """Someone gathers things, then one or two things happen to them."""
    name, other = s.rng.sample(NAMES, 2)
    things, boxes = s.rng.choice(THINGS), s.rng.choice(BOXES)
    start = s.rng.choice(("boxes", "days", "more", "times"))
    a, b = s.number(2, 9), s.number(2, 9)
    if start == "boxes":
        s.tell(start, f"{name} has {a} {boxes} with {b} {things} in each.", a, b)
        have = s.work(a, "*", b, f"{name} has {{}} {things} at first.")
    elif start == "days":
        a, b = s.number(5, 45), s.number(5, 45)
        s.tell(start, f"{name} finds {a} {things} on Monday and {b} {things} on Friday.", a, b)
        have = s.work(a, "+", b, f"{name} has {{}} {things} at first.")
    elif start == "more":
        a, b = s.number(5, 50), s.number(3, 40)
        s.tell(start, f"{other} has {a} {things}. {name} has {b} more {things} than {other}.", a, b)
        have = s.work(a, "+", b, f"{name} has {{}} {things} at first.")
    else:
        s.tell(start, f"{other} has {b} {things}. {name} has {a} times as many {things} as {other}.", a, b)
        have = s.work(a, "*", b, f"{name} has {{}} {things} at first.")
    for _ in range(s.number(1, 2)):
        have = happening(s, have, name, other, things, boxes)
    shares = [n for n in range(2, 10) if have % n == 0 and have // n > 1]
    if shares and len(s.worked) < 5 and s.rng.random() < 0.4:
        n = s.rng.choice(shares)
        s.tell("share", f"At last {name} shares all the {things} equally among {n} friends.", n)
        each = s.work(have, "/", n, f"Each friend gets {{}} {things}.")
        return s.finish(f"How many {things} does each friend get?", each)
    return s.finish(f"How many {things} does {name} have now?", have)


def happening(s: Story, have: int, name: str, other: str, things: str, boxes: str) -> int:
    """One event in a collection story; returns how many things there are after it."""
    events = ["gives", "sells"] if have > 12 else []
    events += ["finds"] if have < 90 else []
    events += ["packs"] if have < 60 else []
    events += ["double"] if have < 50 else []
    event = s.rng.choice(events)
    if event == "finds":
        k = s.number(3, 99 - have)
        s.tell(event, f"Then {name} gets {k} more {things}.", k)
        return s.work(have, "+", k, f"Then {name} has {{}} {things}.")
    if event == "packs":
        n, k = s.number(2, 6), s.number(2, 6)
        s.tell(event, f"Then {name} buys {n} {boxes} of {k} {things}.", n, k)
        new = s.work(n, "*", k, f"{name} buys {{}} {things}.")
        return s.work(have, "+", new, f"Then {name} has {{}} {things}.")
    if event == "gives":
        k = s.number(3, have - 3)
        s.tell(event, f"Then {name} gives {k} {things} to {other}.", k)
        return s.work(have, "-", k, f"Then {name} has {{}} {things}.")
    if event == "sells":
        n = s.number(2, 4)
        k = s.number(2, have // n - 1)
        s.tell(event, f"Then {name} sells {k} {things} to each of {n} friends.", k, n)
        sold = s.work(k, "*", n, f"{name} sells {{}} {things}.")
        return s.work(have, "-", sold, f"Then {name} has {{}} {things}.")
    s.tell(event, f"Then {name} finds as many {things} again.")
    return s.work(have, "*", 2, f"Then {name} has {{}} {things}.")


def shopping(s: Story) -> Problem:
    """Two kinds of goods are bought; total price, or change from a bill."""
    name = s.rng.choice(NAMES)
    first, second = s.rng.sample(GOODS, 2)
    a, p, b, q = s.number(2, 6), s.number(2, 8), s.number(2, 6), s.number(2, 8)
    s.tell("buy", f"{name} buys {a} {first} for {p} dollars each and {b} {second} for {q} dollars each.", a, p, b, q)
    one = s.work(a, "*", p, f"The {first} cost {{}} dollars.")
    two = s.work(b, "*", q, f"The {second} cost {{}} dollars.")
    total = s.work(one, "+", two, f"In total {name} pays {{}} dollars.")
    if s.rng.random() < 0.5:
        return s.finish(f"How many dollars does {name} pay in total?", total)
    purse = s.number(total + 1, 99)
    s.tell("purse", f"{name} had {purse} dollars before.", purse)
    left = s.work(purse, "-", total, f"{name} has {{}} dollars left.")
    return s.finish(f"How many dollars does {name} have left?", left)


def wages(s: Story) -> Problem:
    """Pay by the hour over some days, then a purchase or a bonus."""
    name, place = s.rng.choice(NAMES), s.rng.choice(PLACES)
    hours, days = s.number(2, 6), s.number(2, 5)
    pay = s.number(3, min(9, 96 // (hours * days)))
    s.tell("wage", f"{name} works at the {place} for {pay} dollars an hour.", pay)
    s.tell("hours", f"{name} works {hours} hours a day for {days} days.", hours, days)
    worked = s.work(hours, "*", days, f"{name} works {{}} hours.")
    money = s.work(worked, "*", pay, f"{name} earns {{}} dollars.")
    if s.rng.random() < 0.5:
        bonus = s.number(3, 99 - money)
        s.tell("bonus", f"The {place} adds a bonus of {bonus} dollars.", bonus)
        money = s.work(money, "+", bonus, f"With the bonus {name} has {{}} dollars.")
    if money > 20 and s.rng.random() < 0.6:
        price = s.number(5, money - 5)
        s.tell("spend", f"{name} then spends {price} dollars.", price)
        money = s.work(money, "-", price, f"After shopping {name} has {{}} dollars.")
    return s.finish(f"How many dollars does {name} have at the end?", money)


def travel(s: Story) -> Problem:
    """Two legs of a trip, the distance covered or left."""
    vehicle = s.rng.choice(VEHICLES)
    v, h, w, g = s.number(3, 12), s.number(2, 4), s.number(3, 12), s.number(2, 4)
    legs = f"A {vehicle} goes {v} miles an hour for {h} hours, then {w} miles an hour for {g} hours."
    s.tell("leg", legs, v, h, w, g)
    one = s.work(v, "*", h, "The first part is {} miles.")
    two = s.work(w, "*", g, "The second part is {} miles.")
    total = s.work(one, "+", two, f"In total the {vehicle} goes {{}} miles.")
    if s.rng.random() < 0.5:
        return s.finish(f"How many miles does the {vehicle} go in total?", total)
    trip = s.number(total + 2, 99)
    s.tell("trip", f"The whole trip is {trip} miles.", trip)
    left = s.work(trip, "-", total, "There are {} miles left.")
    return s.finish("How many miles are left?", left)


def reading(s: Story) -> Problem:
    """A book read at one pace, the rest spread over more days."""
    name = s.rng.choice(NAMES)
    pace, days, rest, later = s.number(3, 9), s.number(2, 6), s.number(2, 9), s.number(2, 5)
    pages = pace * days + rest * later
    book = f"{name} has a book of {pages} pages and reads {pace} pages a day for {days} days."
    s.tell("book", book, pages, pace, days)
    read = s.work(pace, "*", days, f"{name} reads {{}} pages.")
    left = s.work(pages, "-", read, "There are {} pages left.")
    if s.rng.random() < 0.4:
        return s.finish("How many pages are left?", left)
    s.tell("rest", f"{name} reads the rest in {later} days.", later)
    each = s.work(left, "/", later, f"Each day {name} reads {{}} pages.")
    return s.finish(f"How many pages a day does {name} read then?", each)


STORIES: tuple[tuple[Callable[[Story], Problem], int], ...] = (
    (collection, 5), (shopping, 2), (wages, 2), (travel, 2), (reading, 2),
)  # fmt: skip


def split_of(signature: str) -> str:
    """The split that a signature belongs to: of 20 parts one is test, one validation, the rest train."""
    part = int.from_bytes(hashlib.sha256(signature.encode()).digest()[:8], "big") % 20
    return "test" if part == 0 else "validation" if part == 1 else "train"


def stream(split: str, seed: int) -> Iterator[Problem]:
    """Endless problems of one split, no question twice; the same seed gives the same stream on every machine."""
    if split not in SPLITS:
        raise UserError("split", split, f"one of {', '.join(SPLITS)}")
    # A string seed is hashed with SHA-512 by the standard library, so close integers give unrelated streams.
    rng = random.Random(f"{split}/{seed}")
    kinds, weights = zip(*STORIES, strict=True)
    seen: set[str] = set()
    while True:
        problem = rng.choices(kinds, weights)[0](Story(rng))
        if split_of(problem.signature) == split and problem.question not in seen:
            seen.add(problem.question)
            yield problem


def generate(split: str, count: int, seed: int = 0) -> list[Problem]:
    """``count`` distinct problems of a split ("train", "validation" or "test"); a longer list extends a shorter one.

    Raises:
        UserError: an unknown split.
    """
    problems = stream(split, seed)
    return [next(problems) for _ in range(count)]
