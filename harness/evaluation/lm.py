"""Our engine as an lm-eval model: prompts in, answers out, one row of measurements per document on the side."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from tqdm import tqdm

from harness.engine.rows import Completion, Request
from harness.errors import UserError
from harness.models.chat import encode_rendered

DEFAULT_MAX_GEN_TOKS = 256
Row = dict[str, Any]
DocKey = tuple[str, int]


class Generates(Protocol):
    """What is needed of an engine."""

    def run(self, requests: Iterable[Request]) -> Iterable[Completion]: ...


def prompt_hash(prompt: str) -> str:
    """SHA-256 of the prompt's text, as in lm-eval's samples."""
    return hashlib.sha256(prompt.encode()).hexdigest()


def document_seed(seed: int, task: str, doc_id: int) -> int:
    """A document's own seed: the same whatever the limit, the order or the batch; 63 bits."""
    digest = hashlib.sha256(f"{seed}/{task}/{doc_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class EngineLM(LM):
    """lm-eval's view of an engine with a loaded model.

    Args:
        engine: answers requests, in any order.
        loaded: its model; tokenizer, name and context length are read.
        seed: the run's seed.
        done: rows of an earlier attempt at the same cell; a document among them is not generated again.
        on_row: told each row as soon as its document is finished, rows of ``done`` excepted.
        score: headline score of an answer, or None where it is not cheap; for the progress bar only.
        progress: show the bar.
        label: the bar's text.

    ``rows`` holds the result: a row per document, keyed by (task, doc id).
    """

    def __init__(
        self,
        engine: Generates,
        loaded: Any,
        *,
        seed: int = 0,
        done: Iterable[Mapping[str, Any]] = (),
        on_row: Callable[[Row], None] | None = None,
        score: Callable[[Instance, str], float | None] | None = None,
        progress: bool = False,
        label: str = "",
    ) -> None:
        super().__init__()
        self.rows: dict[DocKey, Row] = {}
        self._engine, self._loaded, self._seed = engine, loaded, seed
        self._done = {(row["task"], row["doc_id"], row["prompt_hash"]): dict(row) for row in done}
        self._on_row = on_row or (lambda row: None)
        self._score = score or (lambda instance, text: None)
        self._progress, self._label = progress, label

    @property
    def tokenizer_name(self) -> str:
        """Name under which lm-eval records the tokenizer."""
        return str(self._loaded.tokenizer.name_or_path).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template's text.

        Raises:
            UserError: the tokenizer has none.
        """
        template = self._loaded.tokenizer.chat_template
        if not isinstance(template, str):
            raise UserError(
                "model", self._loaded.name, "a model whose tokenizer has one chat template", "choose an instruct model"
            )
        return template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Render turns as a prompt; without a generation prompt the last turn is left open to be continued."""
        return self._loaded.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        """Answer requests. Repeats of a document (lm-eval pads ranks with them) are generated once.

        Raises:
            UserError: a prompt leaves no room in the model's context; said before anything is generated.
        """
        instances = _by_document(requests)
        fresh = []
        for key, instance in instances.items():
            found = self._done.get((*key, prompt_hash(instance.args[0])))
            if found is None:
                fresh.append(self._request(key, instance))
            else:
                self.rows[key] = found
        self._check_lengths(fresh)
        self._generate(fresh, instances)
        return [self.rows[_key(instance)]["text"] for instance in requests]

    def requests(self, instances: Sequence[Instance]) -> list[Request]:
        """What ``generate_until`` asks of the engine, each document once, without asking it.

        Raises:
            UserError: as ``generate_until``.
        """
        asked = [self._request(key, instance) for key, instance in _by_document(instances).items()]
        self._check_lengths(asked)
        return asked

    def loglikelihood(self, requests: Sequence[Instance]) -> list[tuple[float, bool]]:
        """Refused: a multi-token decoder is measured by what it generates.

        Raises:
            UserError: always.
        """
        raise UserError(
            "suite.tasks",
            sorted({str(instance.task_name) for instance in requests}),
            "tasks that generate text; these ask for log-likelihoods, which decoding methods do not give",
            "choose the generative form of the benchmark (output_type: generate_until)",
        )

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:
        """Refused, as ``loglikelihood``."""
        self.loglikelihood(requests)
        raise AssertionError("unreachable")

    def _request(self, key: DocKey, instance: Instance) -> Request:
        prompt, options = instance.args
        if options.get("do_sample"):
            raise UserError("suite.tasks", key[0], "tasks with greedy answers; this one samples (do_sample)")
        until = options.get("until") or []
        stop = [until] if isinstance(until, str) else until
        # The chat template has written the special tokens already; adding them again would double the first one.
        return Request(
            prompt_ids=encode_rendered(self._loaded.tokenizer, prompt),
            max_new_tokens=int(options.get("max_gen_toks", DEFAULT_MAX_GEN_TOKS)),
            stop=tuple(dict.fromkeys(text for text in stop if text)),
            key=key,
            seed=document_seed(self._seed, *key),
        )

    def _check_lengths(self, requests: Sequence[Request]) -> None:
        limit = self._loaded.context_length
        long = [request for request in requests if len(request.prompt_ids) >= limit]
        if not long:
            return
        worst = max(long, key=lambda request: len(request.prompt_ids))
        task, doc_id = _document(worst.key)
        raise UserError(
            "suite.tasks",
            task,
            f"the prompt of document {doc_id} has {len(worst.prompt_ids)} tokens and {self._loaded.name} reads "
            f"{limit} with room for an answer ({len(long)} of {len(requests)} prompts are too long)",
            "choose a model with a longer context, another suite, or a protocol with fewer worked examples",
        )

    def _generate(self, fresh: Sequence[Request], instances: Mapping[DocKey, Instance]) -> None:
        meter = _Meter(len(instances), self._label, self._progress)
        with meter.bar:
            for key, row in self.rows.items():
                meter.add(row, self._score(instances[key], row["text"]) if self._progress else None)
            for completion in self._engine.run(fresh):
                key = _document(completion.key)
                row = _row(completion, prompt_hash(instances[key].args[0]))
                self.rows[key] = row
                self._on_row(row)
                meter.add(row, self._score(instances[key], row["text"]) if self._progress else None)
        if missing := instances.keys() - self.rows.keys():
            raise RuntimeError(f"the engine returned no completion for {sorted(missing)[:3]} ({len(missing)} in all)")


class _Meter:
    """The cell's progress bar, with running tokens per forward (a ratio of sums) and accuracy."""

    def __init__(self, total: int, label: str, shown: bool) -> None:
        self.bar = tqdm(
            total=total, desc=label, disable=not shown, dynamic_ncols=True, smoothing=0.1,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]",
        )  # fmt: skip
        self._tokens = self._forwards = 0
        self._scores: list[float] = []

    def add(self, row: Mapping[str, Any], score: float | None) -> None:
        self._tokens += row["new_tokens"]
        self._forwards += row["target_forwards"]
        self._scores += [] if score is None else [score]
        shown = {"tok/fwd": f"{self._tokens / max(self._forwards, 1):.2f}"}
        if self._scores:
            shown["acc"] = f"{sum(self._scores) / len(self._scores):.1%}"
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update()


def _document(key: Hashable) -> DocKey:
    """The key we gave a request, back from the engine."""
    return cast(DocKey, key)


def _by_document(instances: Iterable[Instance]) -> dict[DocKey, Instance]:
    """The first instance of each document."""
    found: dict[DocKey, Instance] = {}
    for instance in instances:
        found.setdefault(_key(instance), instance)
    return found


def _key(instance: Instance) -> DocKey:
    return str(instance.task_name), int(instance.doc_id)


def _row(completion: Completion, hashed_prompt: str) -> Row:
    task, doc_id = _document(completion.key)
    return {
        "task": task,
        "doc_id": doc_id,
        "prompt_hash": hashed_prompt,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "confidences": [round(value, 6) for step in completion.trace for value in step.confidences],
        # The first forward reads the prompt, and a forward that only stores leaves no step: neither is timed apart.
        "timed_forwards": len(completion.trace) - 1,
        "timed_draft_forwards": sum(step.draft_forwards for step in completion.trace[1:]),
        **completion.stats.to_dict(),
    }
