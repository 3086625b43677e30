"""Runs lm-eval without its chatter between a user and the progress bar, and without compiling a template twice.

Warnings that matter still come through.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from unittest import mock

import datasets

# Said by lm-eval on every task that brings its own data, and about nothing a user did.
HARMLESS = ("Custom kwargs can be passed to",)


class _Harmless(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not any(text in record.getMessage() for text in HARMLESS)


@contextmanager
def quiet() -> Iterator[None]:
    """Within: no progress bars of lm-eval or datasets, none of lm-eval's information messages.

    lm-eval compiles each template anew for each document (BBH: eleven times, half a minute for all); here it is kept.
    """
    import lm_eval.api.task
    import lm_eval.utils

    loggers = [logging.getLogger(name) for name in ("lm_eval", "lm_eval.api.task", "lm_eval.evaluator")]
    hub = logging.getLogger("huggingface_hub")  # it tells each of its retries; what fails in the end is told once
    hub_level = hub.level
    levels = [logger.level for logger in loggers]
    harmless = _Harmless()
    bars_were_on = not datasets.are_progress_bars_disabled()
    for logger in loggers:
        logger.setLevel(logging.WARNING)
        logger.addFilter(harmless)
    hub.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        silent = partial(lm_eval.api.task.tqdm, disable=True)
        compiled = lru_cache(maxsize=256)(lm_eval.utils.env.from_string)
        with (
            mock.patch.object(lm_eval.api.task, "tqdm", silent),
            mock.patch.object(lm_eval.utils.env, "from_string", compiled),
        ):
            yield
    finally:
        hub.setLevel(hub_level)
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeFilter(harmless)
            logger.setLevel(level)
        if bars_were_on:
            datasets.enable_progress_bars()
