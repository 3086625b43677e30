"""One generation, with the tokens that were committed together shaded, as in the paper's Figure 1.

    python -m harness.generate "Tom has 3 bags of 12 apples. How many apples are there?" method=mars tau=0.9

Settings are those of ``harness.run`` (method, model, tau, block_size, checkpoint, …) and four more:
``max_new_tokens=``, ``stop=``, ``chat=false`` (plain text, no chat template), ``svg=FILE`` (save the picture).
"""

from __future__ import annotations

import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from harness.engine.rows import Completion
from harness.errors import UserError

SETTING = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@/-]*=")
OWN = {"max_new_tokens": "256", "stop": "", "chat": "true", "svg": ""}

# Hue tells how many tokens a forward committed, and two tints of it tell one forward from the next. Hues of Okabe and
# Ito, which colour-blind readers can tell apart, lightened until black text reads well on them.
HUES = (
    (1, "1 token", ("#e4e4e4", "#cfcfcf")),
    (2, "2 tokens", ("#bfe3f7", "#93cdef")),
    (3, "3 tokens", ("#b5e6d6", "#7fd1b7")),
    (4, "4 tokens", ("#fbe0a6", "#f3c463")),
    (8, "5 to 8", ("#f0cfe1", "#e0a6c8")),
    (10**9, "9 or more", ("#f9c9ae", "#f0a079")),
)
NONE = (0, "none", ("", ""))  # a forward that only stored tokens, or only denoised
SEPARATOR = "│"


def main(arguments: Sequence[str]) -> int:
    """Command line: prints one generation; returns the exit status."""
    try:
        prompt, own, overrides = parse(arguments)
        if prompt is None and arguments and not {"-h", "--help"} & set(arguments):
            fix = "give it in quotes; after -- also one that looks like key=value"
            raise UserError("prompt", "", "a text to continue, and none is left besides the settings", fix)
        if prompt is None:
            print(__doc__)
            return 0
        generate(prompt, own, overrides)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def parse(arguments: Sequence[str]) -> tuple[str | None, dict[str, str], list[str]]:
    """Split a command line into prompt, this command's own settings, and those it shares with ``harness.run``.

    Whatever is not ``key=value`` is prompt; after ``--`` everything is. Without one, the prompt is read from a pipe.

    Returns:
        prompt (None when help is asked for, or there is nothing to read), own settings, overrides.
    """
    words = list(arguments)
    if "-h" in words or "--help" in words:
        return None, {}, []
    split = words.index("--") if "--" in words else len(words)
    settings = [w for w in words[:split] if SETTING.match(w)]
    text = [w for w in words[:split] if not SETTING.match(w)] + words[split + 1 :]
    own, overrides = dict(OWN), []
    for setting in settings:
        key, _, value = setting.partition("=")
        if key in OWN:
            own[key] = value
        else:
            overrides.append(setting)
    if not text and not sys.stdin.isatty():
        text = [sys.stdin.read().strip()]
    return " ".join(text) or None, own, overrides


def generate(prompt: str, own: dict[str, str], overrides: Sequence[str]) -> Completion:
    """Decode one prompt and print it.

    Raises:
        UserError: a setting that does not exist or fit; a checkpoint that is missing (with the command that makes it).
    """
    import torch

    from harness import decode, grid
    from harness.models.load import load

    if own["chat"] not in ("true", "false"):
        raise UserError("chat", own["chat"], "true or false")
    if not own["max_new_tokens"].isdecimal():
        raise UserError("max_new_tokens", own["max_new_tokens"], "a whole number of tokens, at least 1")
    plan = grid.make_plan(list(overrides), multirun=False)
    [cell] = plan.cells
    if cell.missing is not None:
        raise cell.missing
    cfg, method = cell.cfg, cell.method
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    request = grid.checkpoint_request(cfg, method)
    loaded = load(cfg.model, method=method, dtype=cfg.dtype, device=cfg.device, **request)
    [completion] = decode(
        loaded,
        method,
        prompt,
        max_new_tokens=int(own["max_new_tokens"]),
        stop=(own["stop"],) if own["stop"] else (),
        chat=own["chat"] == "true",
        seed=cfg.seed,
        cache=cfg.cache,
        cache_block=cfg.cache_block,
        accept_limit=cfg.accept_limit,
    )
    axes = ", ".join(grid.settings_text(method))
    title = f"{method.name} ({axes})" if axes else method.name
    console = Console(highlight=False)
    heading = f"{title}, {loaded.name}"
    pieces = step_texts(completion, lambda ids: str(loaded.tokenizer.decode(ids, skip_special_tokens=False)))
    show(console, heading, completion, pieces)
    if own["svg"]:
        # Drawn apart, so that a picture is in colour also where the terminal is not.
        picture = Console(
            record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor", width=console.width
        )
        show(picture, heading, completion, pieces)
        try:
            Path(own["svg"]).write_text(picture.export_svg(title=heading), "utf-8")
        except OSError as error:
            raise UserError("svg", own["svg"], f"a file that can be written ({error.strerror})") from None
    return completion


def step_texts(completion: Completion, decode_ids: Callable[[list[int]], str]) -> list[str]:
    """Text that each forward added, special tokens shown; a character split between forwards belongs to the last."""
    texts, ids, done = [], list[int](), 0
    for step in completion.trace:
        ids += step.token_ids
        so_far = decode_ids(ids)
        whole = so_far if step is completion.trace[-1] else so_far.rstrip("\ufffd")
        texts.append(whole[done:])
        done = max(done, len(whole))
    return texts


def show(console: Console, title: str, completion: Completion, pieces: Sequence[str]) -> None:
    """Print the shaded text and its legend; without colour, a bar ends what each forward committed."""
    lengths = [len(step.token_ids) for step in completion.trace]
    coloured = console.color_system is not None
    text = Text()
    for i, (piece, length) in enumerate(zip(pieces, lengths, strict=True)):
        if coloured and length:
            text.append(piece, f"#000000 on {_hue(length)[2][i % 2]}")
        elif length and i < len(pieces) - 1:
            line = piece.rstrip("\n")
            text.append(line + SEPARATOR + piece[len(line) :])
        else:
            text.append(piece)
    console.print(text, soft_wrap=not console.is_terminal)  # piped text keeps its own lines
    console.print()
    console.print(legend(title, completion, lengths, coloured))


def legend(title: str, completion: Completion, lengths: Sequence[int], coloured: bool) -> Text:
    """What was run, what it cost, and how many forwards committed how many tokens."""
    stats = completion.stats
    seconds = stats.prefill_seconds + stats.decode_seconds
    drafting = f", {stats.draft_forwards} draft forwards" if stats.draft_forwards else ""
    text = Text(
        f"{title}\n{stats.new_tokens} tokens in {stats.target_forwards} forwards{drafting} and {seconds:.2f} s, ended "
        f"by {stats.finish_reason}\n{stats.tokens_per_forward:.2f} tokens per forward, {stats.positions_per_token:.2f} "
        f"positions per token\ncommitted together" + ("" if coloured else f" ({SEPARATOR} ends a forward)")
    )
    for (_, label, shades), count in Counter(_hue(n) for n in sorted(lengths)).items():
        text.append("\n  ")
        for shade in shades if coloured else ():
            text.append("  ", f"on {shade}" if shade else "")
        text.append(f" {label:10} in {count} forward" + ("" if count == 1 else "s"))
    return text


def _hue(length: int) -> tuple[int, str, tuple[str, str]]:
    return next(hue for hue in (NONE, *HUES) if length <= hue[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
