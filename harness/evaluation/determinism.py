"""Makes what lm-eval's tasks draw at random a function of the document: the same in every run, order and rank."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Callable, MutableSequence
from functools import wraps
from types import FunctionType, SimpleNamespace
from typing import Any


def fix(config: Any) -> None:
    """Replace a task config's functions that draw from the global random state by ones that do not.

    GPQA's ``process_docs`` shuffles the choices anew at each access, so that the prompt and the scoring of a question
    may disagree; IFEval's scoring draws what an instruction leaves open, and langdetect draws at each detection.
    """
    if isinstance(config.process_docs, FunctionType):
        config.process_docs = shuffled_by_content(config.process_docs)
    if callable(config.process_results):
        config.process_results = seeded(config.process_results)


def shuffled_by_content(function: FunctionType) -> FunctionType:
    """The function with its module's ``random`` replaced by one that only shuffles, by what is shuffled.

    Any other use of ``random`` fails loudly. Functions without it are returned as they are.
    """
    if not isinstance(function.__globals__.get("random"), type(random)):
        return function
    own = function.__globals__ | {"random": SimpleNamespace(shuffle=shuffle)}
    return FunctionType(function.__code__, own, function.__name__, function.__defaults__, function.__closure__)


def shuffle(items: MutableSequence[Any]) -> None:
    """Shuffle in place; the result depends on the items and on nothing else."""
    random.Random(_seed(items)).shuffle(items)


def seeded(score: Callable[..., Any]) -> Callable[..., Any]:
    """A scorer ``score(doc, results)`` that finds the random state of its document, and leaves no trace of it."""

    @wraps(score)
    def wrapped(doc: Any, results: Any) -> Any:
        before = random.getstate()
        random.seed(_seed(doc))
        if langdetect := sys.modules.get("langdetect"):
            langdetect.DetectorFactory.seed = 0
        try:
            return score(doc, results)
        finally:
            random.setstate(before)

    return wrapped


def _seed(value: Any) -> int:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], "big")
