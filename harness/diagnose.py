"""Explains each difference between a lossless method's answers and greedy AR's: a near-tie, or a bug?

    python -m harness.diagnose method=medusa model=smollm2-135m suite=gsm8k suite.limit=20 dtype=bfloat16

Settings are those of ``harness.run``. The suite's documents are decoded by the method and by AR on the same weights, in
the same dtype. A lossless method gives AR's answers in exact arithmetic; in 16 bits a window of several tokens rounds
otherwise than single tokens do, and where two tokens are nearly equally likely the answers may part. At the first token
where they do, the logits are computed once more without the method. Exit status: 0 all answers equal or parted at
near-ties, 1 some parted elsewhere (a bug), 2 a mistake in the configuration.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from hydra._internal.utils import get_args_parser
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from torch import Tensor
from tqdm import tqdm

from harness import grid
from harness.engine.commit import Commit
from harness.engine.forward import backbone, lm_head
from harness.engine.loop import Engine
from harness.engine.rows import Completion, Request, Row
from harness.engine.window import Output
from harness.errors import UserError
from harness.evaluation import suites
from methods.ar_sft import ArSft

if TYPE_CHECKING:
    from harness.models.load import LoadedModel

# Rounding is measured on the tokens that a difference can be about, the likeliest ones of each place.
LIKELIEST = 10
# A maximum over a few hundred places falls short of the worst that rounding does; a bug's gaps are not this small.
MARGIN = 2
ENDED = "(end)"


@dataclass(frozen=True)
class Difference:
    """The first token at which two answers to one document differ. A gap is AR's token's logit minus the method's's.

    Attributes:
        document: task and number.
        place: index of the token in the answer.
        ar, method: the tokens; None where that answer has ended.
        whole: gap in one uncached forward over the text so far, in the run's dtype.
        cached: gap token by token, as AR decodes, in the run's dtype.
        exact: gap in one uncached forward of the same weights in a wider dtype.
        noise: most that the first two change a gap between likely tokens, against the third, along this answer.
        spacing: distance of neighbouring numbers of the run's dtype at this logit.
    """

    document: tuple[str, int]
    place: int
    ar: int | None
    method: int | None
    whole: float = math.nan
    cached: float = math.nan
    exact: float = math.nan
    noise: float = 0.0
    spacing: float = 0.0

    def is_tie(self, noise: float) -> bool:
        """Whether rounding that changes gaps by ``noise`` can have turned this one round.

        One of the two answers has the sign of the exact gap, so the other's rounding alone must be as large as the gap.
        Two logits that are rounded to the dtype in the end can always move by one spacing.
        """
        return abs(self.exact) <= max(MARGIN * noise, self.spacing)  # False for nan


def main(arguments: Sequence[str]) -> int:
    """Command line: prints the differences and a summary; returns the exit status."""
    args = get_args_parser().parse_args(list(arguments))
    if args.help:
        print(__doc__)
        return 0
    try:
        if args.multirun:
            raise UserError("-m", " ".join(args.overrides), "one configuration at a time", "leave -m out")
        plan = grid.make_plan(args.overrides, False, args.config_name or "config", args.config_dir)
        [cell] = plan.cells
        check(cell)
        asked, differences, loaded = diagnose(cell)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    Console(highlight=False).print(report(cell, loaded, len(asked), differences))
    return int(bool(bugs(differences)))


def check(cell: grid.Cell) -> None:
    """Raises UserError unless the cell's answers are meant to be greedy AR's, and its weights are there."""
    method = cell.method
    if not method.lossless:
        allowed = f"a lossless method, whose answers are meant to equal AR's; {cell.title} may give others"
        fix = "verify=true" if "verify" in method.axes() else "python -m harness.run measures by how much they differ"
        raise UserError("method", method.name, allowed, fix)
    if getattr(method, "temperature", 0):
        raise UserError("temperature", cell.cfg.temperature, "0: samples are not meant to be equal", "temperature=0")
    if cell.missing is not None:
        raise cell.missing


def diagnose(cell: grid.Cell) -> tuple[list[Request], list[Difference], LoadedModel]:
    """Decode a cell's documents by its method and by AR, and look into the differences.

    Returns:
        The requests, the differences in their order, and the model.
    """
    from harness.cell import cpu_threads
    from harness.evaluation import evaluate
    from harness.models.load import load

    cfg, method = cell.cfg, cell.method
    torch.set_num_threads(cpu_threads(cfg))
    loaded = load(cfg.model, method=method, dtype=cfg.dtype, device=cfg.device, **grid.checkpoint_request(cfg, method))
    caching = {"cache": cfg.cache, "cache_block": cfg.cache_block, "accept_limit": cfg.accept_limit}
    engines = [Engine(loaded, one, batch_size=cfg.batch_size, **caching) for one in (ArSft(), method)]
    asked = evaluate.requests(engines[0], loaded, grid.suite_config(cfg), seed=cfg.seed)
    ar, ours = (_decode(engine, asked) for engine in engines)
    parted = [(request, find(ar[request.key], ours[request.key])) for request in asked]
    found = [(request, difference) for request, difference in parted if difference is not None]
    exact = _wider(loaded.model) if found else None
    answers = {request.key: ar[request.key].token_ids for request, _ in found}
    return asked, [explain(loaded, exact, r, answers[r.key][: d.place], d, caching) for r, d in found], loaded


def find(ar: Completion, method: Completion) -> Difference | None:
    """The first token at which two completions of one request differ, or None. An end counts as a token."""
    document: Any = ar.key
    shared = min(len(ar.token_ids), len(method.token_ids))
    pairs = zip(ar.token_ids, method.token_ids, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), shared)
    a, b = (one.token_ids[place] if place < len(one.token_ids) else None for one in (ar, method))
    if a is None and b is None and ar.stats.finish_reason == method.stats.finish_reason:
        return None
    return Difference(document, place, a, b)


def explain(
    loaded: LoadedModel, exact: Any, request: Request, shared: list[int], found: Difference, caching: Mapping[str, Any]
) -> Difference:
    """The difference with its gaps and the rounding around it, all computed without the method.

    Args:
        exact: the same weights in a wider dtype.
        shared: tokens of the answer before the difference.
        caching: the engine's settings.
    """
    if found.ar is None or found.method is None:
        return found
    start = len(request.prompt_ids) - 1
    whole, wide = (_logits(m, request.prompt_ids + shared, start).double() for m in (loaded.model, exact))
    cached = _replay(loaded, request, shared, caching).double()
    likeliest = wide.topk(min(LIKELIEST, wide.shape[1])).indices  # [places, tokens], the first is the top one

    def noise(logits: Tensor, places: slice) -> float:
        error = (logits - wide[places]).gather(1, likeliest[places])
        return float((error - error[:, :1]).abs().max())

    pair = [found.ar, found.method]
    in_whole, in_cached, in_exact = (float(x[found.ar] - x[found.method]) for x in (whole[-1], cached, wide[-1]))
    highest = float(whole[-1, pair].abs().max())
    spacing = torch.finfo(loaded.model.dtype).eps * 2.0 ** math.floor(math.log2(highest)) if highest else 0.0
    most = max(noise(whole, slice(None)), noise(cached[None], slice(-1, None)))
    return replace(found, whole=in_whole, cached=in_cached, exact=in_exact, noise=most, spacing=spacing)


def _decode(engine: Engine, asked: Sequence[Request]) -> dict[Any, Completion]:
    bar = tqdm(engine.run(asked), engine.method.name, len(asked), disable=not sys.stderr.isatty(), leave=False)
    return {completion.key: completion for completion in bar}


def _wider(model: Any) -> Any:
    """The same weights, which the run's dtype has rounded already, to compute with in a wider one."""
    return copy.deepcopy(model).to(_wider_dtype(model.dtype))


def _wider_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.itemsize < 4 else torch.float64


def _logits(model: Any, ids: list[int], start: int) -> Tensor:
    """[length − start, vocab] from place ``start`` of one causal forward over a text, without a cache."""
    with torch.no_grad():
        hidden = backbone(model)(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
        return lm_head(model)(hidden.last_hidden_state[0, start:])


def _replay(loaded: LoadedModel, request: Request, shared: list[int], caching: Mapping[str, Any]) -> Tensor:
    """[vocab] after the prompt and ``shared``, as AR has it: the prompt at once, then token by token, cached."""
    last: list[Tensor] = []

    class Replay(ArSft):
        """AR that says what it is told."""

        def accept(self, rows: list[Row], output: Output) -> Commit:
            last[:] = [output.logits[0, 0]]
            said = [*shared, 0][rows[0].new_tokens]
            return Commit.one(torch.full((1, 1), said, device=output.logits.device))

    list(Engine(loaded, Replay(), **caching).run([Request(request.prompt_ids, len(shared) + 1)]))
    return last[0]


def bugs(differences: Sequence[Difference]) -> list[Difference]:
    """Differences that rounding does not explain."""
    noise = max((d.noise for d in differences), default=0.0)
    return [d for d in differences if not d.is_tie(noise)]


def report(cell: grid.Cell, loaded: LoadedModel, num_documents: int, differences: Sequence[Difference]) -> Group:
    """A line per difference, what the columns are, and the summary; fits 80 columns."""
    dtype, wide = (str(d).removeprefix("torch.") for d in (loaded.model.dtype, _wider_dtype(loaded.model.dtype)))
    unexplained = bugs(differences)
    suite = suites.title(cell.cfg.suite.name, cell.cfg.suite.tasks)
    title = f"{cell.title} against AR · {loaded.name} · {suite} · {dtype} · batch {cell.cfg.batch_size}"
    parts: list[Any] = [Text(title, "bold"), Text()]
    if differences:
        noise = max(d.noise for d in differences)
        parts += [_table(cell.method.name, loaded.tokenizer, differences, unexplained, wide), Text()]
        parts.append(
            Text(
                f"gap: logit of AR's token minus that of {cell.method.name}'s, computed without {cell.method.name}: in "
                f"{dtype} over the whole text at once, in {dtype} token by token with a cache, and in {wide} from the "
                f"same weights. spacings: the last one in steps of {dtype} at that logit.\n"
                f"Rounding to {dtype} changes gaps between the {LIKELIEST} likeliest tokens by up to {noise:.3g} along "
                f"these answers. A gap within {MARGIN} times that, or within one spacing, is a near-tie.",
                "dim",
            )
        )
    equal, ties = num_documents - len(differences), len(differences) - len(unexplained)
    summary = (
        f"{num_documents} documents: {equal} equal, {ties} differ by near-ties, {len(unexplained)} differ otherwise"
    )
    parts.append(Text(summary, "bold red" if unexplained else "bold"))
    return Group(*parts)


def _table(
    name: str, tokenizer: Any, differences: Sequence[Difference], unexplained: Sequence[Difference], wide: str
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    one_task = len({d.document[0] for d in differences}) == 1
    table.add_column("doc" if one_task else "document", overflow="fold")
    table.add_column("token", justify="right", no_wrap=True)
    for heading in ("AR says", f"{name}\nsays"):
        table.add_column(heading, overflow="fold")
    for heading in ("gap,\nwhole", "gap,\ncached", f"gap,\n{wide}", "spacings"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")

    def said(token: int | None) -> Text:
        if token is None:
            return Text(ENDED)
        text = str(tokenizer.decode([token]))
        return Text(f"id {token}" if "\ufffd" in text else repr(text))

    for d in differences:
        task, number = d.document
        spacings = abs(d.exact) / d.spacing if d.spacing else math.nan
        numbers = [*(f"{gap:.3g}" for gap in (d.whole, d.cached, d.exact)), f"{spacings:.2g}"]
        verdict = Text("not a tie: a bug", "red") if d in unexplained else Text("near-tie")
        table.add_row(
            Text(str(number) if one_task else f"{task} {number}"), str(d.place), said(d.ar), said(d.method),
            *("—" if n == "nan" else n.replace("-", "−") for n in numbers), verdict,
        )  # fmt: skip
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
