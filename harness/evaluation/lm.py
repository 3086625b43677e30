"""Our engine as an lm-eval model: prompts in, answers out, one row of measurements per document on the side.

Log-likelihood requests are answered by the same weights as a plain causal LM (``loglikelihood``), with no decoding.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from jinja2 import TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import has_bos_prefix, normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from harness.engine.rows import Completion, Request
from harness.engine.stats import SequenceStats
from harness.errors import UserError
from harness.evaluation.loglikelihood import Document, Pair, Scorer, Scores
from harness.models.chat import encode_plain, encode_rendered
from harness.results.records import SCORED

DEFAULT_MAX_GEN_TOKS = 256
Row = dict[str, Any]
DocKey = tuple[str, int]
Part = tuple[DocKey, str]  # what lm-eval asks about a document in one call: the call's name
GENERATE, CHOOSE, ROLL = "generate_until", "loglikelihood", "loglikelihood_rolling"


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


class EngineLM(TemplateLM):
    """lm-eval's view of an engine with a loaded model.

    Args:
        engine: answers requests, in any order.
        loaded: its model; tokenizer, name and context length are read, and weights for log-likelihoods.
        seed: the run's seed.
        batch_size: contexts read together for log-likelihoods.
        done: rows of an earlier attempt at the same cell; a document among them is not asked again.
        on_row: told each row as soon as its document is finished, rows of ``done`` excepted. A document that lm-eval
            asks both to generate and to score has a row for each; ``done`` takes them as they were told.
        score: headline score of an answer, or None where it is not cheap; for the progress bar only.
        progress: show the bar.
        label: the bar's text.
    """

    def __init__(
        self,
        engine: Generates,
        loaded: Any,
        *,
        seed: int = 0,
        batch_size: int = 1,
        done: Iterable[Mapping[str, Any]] = (),
        on_row: Callable[[Row], None] | None = None,
        score: Callable[[Instance, str], float | None] | None = None,
        progress: bool = False,
        label: str = "",
    ) -> None:
        super().__init__()
        self.tokenizer = loaded.tokenizer
        self._parts: dict[Part, Row] = {}
        self._engine, self._loaded, self._seed, self._batch_size = engine, loaded, seed, batch_size
        self._done = {(_part(row), row["prompt_hash"]): dict(row) for row in done}
        self._on_row = on_row or (lambda row: None)
        self._score = score or (lambda instance, text: None)
        self._progress, self._label = progress, label

    @property
    def rows(self) -> dict[DocKey, Row]:
        """The result: a row per document, keyed by (task, doc id)."""
        found: dict[DocKey, Row] = {}
        for (key, _), row in sorted(self._parts.items(), key=lambda item: item[0][1] != GENERATE):
            found[key] = _join(found[key], row) if key in found else row
        return found

    @property
    def eot_token_id(self) -> int:
        """Id that ends a text: the tokenizer's, or else the model's.

        Raises:
            UserError: neither has one.
        """
        own = self.tokenizer.eos_token_id
        ids = self._loaded.eos_token_ids if own is None else (own,)
        if not ids:
            raise UserError("model", self._loaded.name, "a model with a token that ends a text, or one that begins it")
        return int(ids[0])

    @property
    def prefix_token_id(self) -> int:
        """Id that stands before a text without a context: BOS, or EOS where there is none."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    @property
    def max_length(self) -> int:
        """Positions of the model."""
        return int(self._loaded.context_length)

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
        """Render turns as a prompt; without a generation prompt the last turn is left open to be continued.

        Raises:
            UserError: the template refuses the turns. (lm-eval's ``hf`` leaves the system's out then.)
        """
        try:
            return self._loaded.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        except TemplateError as error:
            roles = ", ".join(turn["role"] for turn in chat_history)
            allowed = f"a model whose chat template takes these turns: {roles} ({error})"
            raise UserError("model", self._loaded.name, allowed) from error

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Ids as lm-eval's ``hf`` has them: the tokenizer's own special tokens, but no BOS before one that is there."""
        if add_special_tokens is None:
            add_special_tokens = not has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id))
        return (encode_plain if add_special_tokens else encode_rendered)(self.tokenizer, string)

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer requests. Repeats of a document (lm-eval pads ranks with them) are generated once.

        Raises:
            UserError: a prompt leaves no room in the model's context; said before anything is generated.
        """
        instances = _by_document(requests)
        fresh = []
        for key, instance in instances.items():
            if not self._known((key, GENERATE), instance):
                fresh.append(self._request(key, instance))
        self._check_lengths(fresh)
        self._generate(fresh, instances)
        return [self._parts[_key(instance), GENERATE]["text"] for instance in requests]

    def requests(self, instances: Sequence[Instance]) -> list[Request]:
        """What ``generate_until`` asks of the engine, each document once, without asking it.

        Raises:
            UserError: as ``generate_until``.
        """
        asked = [self._request(key, instance) for key, instance in _by_document(instances).items()]
        self._check_lengths(asked)
        return asked

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-probability of each continuation after its context, and whether it is what greedy AR would say.

        Raises:
            UserError: context and continuation are longer than the model reads, or there is nothing to score; said
                before anything is scored. (lm-eval's ``hf`` cuts a long context.)
        """
        return self._answers(CHOOSE, requests, lambda context, continuation: [self._pair(context, continuation)])

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of each whole text, in windows of the model's length that follow each other."""
        return [total for total, _ in self._answers(ROLL, requests, self._windows)]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Scores of encoded pairs, for code that builds on lm-eval's ``TemplateLM``."""
        document = Document(None, [[(context, continuation)] for _, context, continuation in requests])
        [scores] = Scorer(self._loaded, self._batch_size).run([document])
        return list(zip(scores.loglikelihoods, scores.is_greedy, strict=True))

    def _pair(self, context: str, continuation: str) -> Pair:
        """Ids of a request's two parts, split as every model of lm-eval has them."""
        if context:
            ids, rest = self._encode_pair(context, continuation)
            return ids or [self.prefix_token_id], rest  # nothing is left of a context that is white space alone
        ids = self.tok_encode(continuation, add_special_tokens=False)
        return (ids[:1], ids[1:]) if ids[:1] == [self.prefix_token_id] else ([self.prefix_token_id], ids)

    def _windows(self, text: str) -> list[Pair]:
        windows = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self.max_length, context_len=1)
        return [make_disjoint_window(window) for window in windows]

    def _answers(
        self, method: str, requests: Sequence[Instance], encode: Callable[..., list[Pair]]
    ) -> list[tuple[float, bool]]:
        """Score what is not known yet, a document at a time; equal requests of a document are scored once."""
        asked: dict[DocKey, dict[tuple[str, ...], int]] = {}
        for instance in requests:
            own = asked.setdefault(_key(instance), {})
            own.setdefault(_texts(instance), len(own))
        instances = _by_document(requests)
        fresh = [
            Document(key, [encode(*texts) for texts in asked[key]])
            for key, instance in instances.items()
            if not self._known((key, method), instance, len(asked[key]))
        ]
        self._check_pairs(fresh)
        meter = _Meter(len(instances), self._label, self._progress)
        with meter.bar:
            for key in instances:
                if (key, method) in self._parts:
                    meter.add(self._parts[key, method], None)
            for scores in Scorer(self._loaded, self._batch_size).run(fresh) if fresh else ():
                key = _document(scores.key)
                row = _scored_row(scores, prompt_hash(instances[key].args[0]), rolling=method == ROLL)
                self._finish((key, method), row, meter, None)
        return [self._answer(method, instance, asked) for instance in requests]

    def _answer(
        self, method: str, instance: Instance, asked: Mapping[DocKey, Mapping[tuple[str, ...], int]]
    ) -> tuple[float, bool]:
        key = _key(instance)
        row, i = self._parts[key, method], asked[key][_texts(instance)]
        return row["loglikelihoods"][i], method != ROLL and row["is_greedy"][i]

    def _check_pairs(self, documents: Sequence[Document]) -> None:
        limit = self._loaded.context_length
        if long := [document for document in documents if document.longest > limit]:
            worst = max(long, key=lambda document: document.longest)
            task, doc_id = _document(worst.key)
            raise UserError(
                "suite.tasks",
                task,
                f"document {doc_id} has {worst.longest} tokens, a choice included, and {self._loaded.name} reads "
                f"{limit} ({len(long)} of {len(documents)} documents are too long)",
                "choose a model with a longer context, another suite, or a protocol with fewer worked examples",
            )
        for document in documents:
            if any(not continuation for pairs in document.requests for _, continuation in pairs):
                task, doc_id = _document(document.key)
                raise UserError("suite.tasks", task, f"choices with text; document {doc_id} has one without any token")

    def _known(self, part: Part, instance: Instance, count: int | None = None) -> bool:
        """Take the row of an earlier attempt if it has one; ``count``: log-likelihoods that it must have."""
        self._parts.pop(part, None)  # of an earlier call, which may have asked with other options
        found = self._done.get((part, prompt_hash(instance.args[0])))
        if found is None or (count is not None and len(found["loglikelihoods"]) != count):
            return False
        self._parts[part] = found
        return True

    def _request(self, key: DocKey, instance: Instance) -> Request:
        prompt, options = instance.args
        options = normalize_gen_kwargs(options, DEFAULT_MAX_GEN_TOKS)
        if options["do_sample"] and options.get("temperature") != 0:
            fix = "leave do_sample out; where answers are to be drawn, it is the method that does: temperature=0.7"
            raise UserError("suite.tasks", key[0], "tasks with greedy answers; this one samples (do_sample)", fix)
        return Request(
            prompt_ids=self._prompt_ids(prompt),
            max_new_tokens=options["max_gen_toks"],
            stop=tuple(dict.fromkeys(text for text in options["until"] if text)),
            key=key,
            seed=document_seed(self._seed, *key),
        )

    def _prompt_ids(self, prompt: str) -> list[int]:
        """The chat template has written the special tokens already; adding them again would double the first one."""
        return encode_rendered(self.tokenizer, prompt)

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
            for key, instance in instances.items():
                if row := self._parts.get((key, GENERATE)):
                    meter.add(row, self._score(instance, row["text"]) if self._progress else None)
            for completion in self._engine.run(fresh):
                key = _document(completion.key)
                row = _row(completion, prompt_hash(instances[key].args[0]))
                self._finish((key, GENERATE), row, meter, instances[key])
        if missing := [key for key in instances if (key, GENERATE) not in self._parts]:
            raise RuntimeError(f"the engine returned no completion for {sorted(missing)[:3]} ({len(missing)} in all)")

    def _finish(self, part: Part, row: Row, meter: _Meter, instance: Instance | None) -> None:
        """Keep a fresh row and tell it; ``instance``: of a generated answer, for its score on the bar."""
        self._parts[part] = row
        self._on_row(row)
        meter.add(row, self._score(instance, row["text"]) if self._progress and instance else None)


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
        shown = {"tok/fwd": f"{self._tokens / self._forwards:.2f}"} if self._forwards else {}
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


def _texts(instance: Instance) -> tuple[str, ...]:
    """A request without what is beside its texts."""
    return tuple(part for part in instance.args if isinstance(part, str))


def _part(row: Mapping[str, Any]) -> Part:
    """Which call a row answers."""
    asked = GENERATE if row["finish_reason"] != SCORED else CHOOSE if row["is_greedy"] else ROLL
    return (row["task"], row["doc_id"]), asked


def _row(completion: Completion, hashed_prompt: str) -> Row:
    return {
        **_header(completion.key, hashed_prompt),
        "text": completion.text,
        "token_ids": completion.token_ids,
        "token_ends": completion.token_ends,
        "confidences": [round(value, 6) for step in completion.trace for value in step.confidences],
        **_drafts(completion),
        # The first forward reads the prompt, and a forward that only stores leaves no step: neither is timed apart.
        "timed_forwards": len(completion.trace) - 1,
        "timed_draft_forwards": sum(step.draft_forwards for step in completion.trace[1:]),
        **completion.stats.to_dict(),
    }


DRAFTS = ("draft_depths", "draft_confidences", "draft_right")


def _drafts(completion: Completion) -> Row:
    """Depth in their chain (1: the first), confidence and verdict of the drafts that the target judged."""
    judged = [
        (depth, round(draft.confidence, 6), draft.is_right)
        for step in completion.trace
        for depth, draft in enumerate(step.drafts, 1)
        if not math.isnan(draft.confidence)
    ]
    return dict(zip(DRAFTS, map(list, zip(*judged, strict=True)) if judged else ([], [], []), strict=True))


def _scored_row(scores: Scores, hashed_prompt: str, rolling: bool) -> Row:
    """No forward is counted, because none decoded: ratios over a suite stay those of decoding."""
    return {
        **_header(scores.key, hashed_prompt),
        "text": "",
        "token_ids": [],
        "token_ends": [],
        "confidences": [],
        **{name: [] for name in DRAFTS},
        "timed_forwards": 0,
        "timed_draft_forwards": 0,
        **SequenceStats(
            prompt_tokens=scores.prompt_tokens, share_seconds=scores.seconds, finish_reason=SCORED
        ).to_dict(),
        "loglikelihoods": scores.loglikelihoods,
        "is_greedy": [] if rolling else scores.is_greedy,
    }


def _header(key: Hashable, hashed_prompt: str) -> Row:
    task, doc_id = _document(key)
    return {"task": task, "doc_id": doc_id, "prompt_hash": hashed_prompt}


def _join(first: Row, second: Row) -> Row:
    """One row of a document that was asked in several calls: ``first`` with what ``second`` scored."""
    scored = {name: [*first.get(name, ()), *second[name]] for name in ("loglikelihoods", "is_greedy")}
    return first | scored | {"share_seconds": first["share_seconds"] + second["share_seconds"]}
