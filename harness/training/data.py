"""From any source of chats to token ids with the assistant's turns marked, by the tokenizer's chat template."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from harness import problems
from harness.errors import UserError
from methods.contract import Example

Chat = list[dict[str, str]]

ROLES = ("system", "user", "assistant")


@dataclass
class DataConfig:
    """Which chats to train on (conf/data/*.yaml).

    Attributes:
        source: ``problems`` (generated word problems), ``gsm8k`` (its train.jsonl), ``jsonl`` (one chat per line) or
            ``hub`` (a dataset of the hub in chat format).
        path: file of ``gsm8k`` and ``jsonl``.
        dataset, config, revision, split, column: which rows of which hub dataset, and where the chat is in a row.
        limit: number of chats to take; None takes all there are (``problems`` has no end and needs one).
        held_out: chats kept apart for the held-out loss, never trained on; ``problems`` draws them from its own split.
        seed: of the generated problems, and of the draw of held-out chats.
    """

    source: str = "problems"
    path: str | None = None
    dataset: str | None = None
    config: str | None = None
    revision: str | None = None
    split: str = "train"
    column: str = "messages"
    limit: int | None = None
    held_out: int = 200
    seed: int = 0


@dataclass(frozen=True)
class TrainingData:
    """Encoded examples, those held out, and what a manifest says about them."""

    train: list[Example]
    held_out: list[Example]
    record: dict[str, Any]


def check_chat(chat: Any) -> str | None:
    """What is wrong with a chat, in words, or None: a list of {role, content} with an assistant's turn."""
    if not isinstance(chat, list) or not chat:
        return "must be a non-empty list of messages"
    for i, message in enumerate(chat):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            return f"message {i} must be an object with a role and a text content"
        if message.get("role") not in ROLES:
            return f"message {i} has the role {message.get('role')!r}, known are {', '.join(ROLES)}"
    if chat[0]["role"] == "assistant":
        return "starts with the assistant, so there is no prompt to answer"
    if all(message["role"] != "assistant" for message in chat):
        return "has no assistant message, so nothing to learn"
    return None


def read_lines(path: str | None, key: str = "data.path") -> Iterator[tuple[str, Any]]:
    """(``file:line``, parsed object) for each non-empty line of a JSONL file.

    Raises:
        UserError: no path, no such file, or a line that is not JSON; names file and line.
    """
    if path is None:
        raise UserError(key, None, "this source reads a JSONL file", f"{key}=path/to/file.jsonl")
    try:
        stream = Path(path).expanduser().open("rb")
    except OSError as error:
        raise UserError(key, path, f"cannot be read: {error.strerror}", "give the path of a JSONL file") from None
    with stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                yield f"{path}:{number}", json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                allowed, fix = f"is not JSON in UTF-8: {getattr(error, 'msg', error)}", "correct or remove this line"
                raise UserError(key, f"{path}:{number}", allowed, fix) from None


def problem_chats(split: str, count: int, seed: int) -> list[Chat]:
    """Generated word problems as two-message chats."""
    return [pair(p.question, p.answer) for p in problems.generate(split, count, seed)]


def gsm8k_chats(path: str | None) -> Iterator[Chat]:
    """GSM8K's lines as two-message chats; its ``<<3*4=12>>`` calculator marks are dropped, as they are for humans."""
    for where, row in read_lines(path):
        if not isinstance(row, dict) or not all(isinstance(row.get(k), str) for k in ("question", "answer")):
            raise UserError("data.path", where, "must be an object with the texts question and answer")
        yield pair(row["question"], re.sub(r"<<.*?>>", "", row["answer"]))


def jsonl_chats(path: str | None, column: str) -> Iterator[Chat]:
    """One chat per line: a list of messages, or an object that holds one under ``column``."""
    for where, row in read_lines(path):
        chat = row.get(column) if isinstance(row, dict) else row
        if problem := check_chat(chat):
            raise UserError("data.path", where, f"{column}: {problem}", "correct or remove this line")
        yield [{"role": m["role"], "content": m["content"]} for m in chat or []]


def hub_chats(config: DataConfig) -> Iterator[Chat]:
    """Rows of a hub dataset, streamed; rows that are no plain chat (tool calls, pictures) are passed over."""
    if config.dataset is None:
        fix = "data.dataset=allenai/Dolci-Instruct-SFT"
        raise UserError("data.dataset", None, "this source reads a hub dataset", fix)
    import datasets  # takes seconds, and only this source needs it

    try:
        rows: Any = datasets.load_dataset(
            config.dataset, config.config, split=config.split, revision=config.revision, streaming=True
        )
    except Exception as error:  # the hub client raises many kinds; all mean that the data cannot be had
        allowed = f"cannot be loaded: {type(error).__name__}: {error}"
        fix = "check the name and the network, or use data=jsonl data.path=… with a downloaded copy"
        raise UserError("data.dataset", config.dataset, allowed, fix) from error
    for row in rows:
        if config.column not in row:
            raise UserError("data.column", config.column, f"a row has the columns {', '.join(row)}")
        if check_chat(row[config.column]) is None:
            yield [{"role": m["role"], "content": m["content"]} for m in row[config.column]]


def pair(question: str, answer: str) -> Chat:
    """A chat of one question and one answer."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def chats(config: DataConfig) -> tuple[list[Chat], list[Chat]]:
    """Chats to train on, and chats held out.

    Raises:
        UserError: an unknown source, a missing option, an unreadable or malformed file, too few chats.
    """
    if config.source == "problems":
        if config.limit is None:
            raise UserError("data.limit", None, "generated problems have no end", "data.limit=50000")
        return (
            problem_chats("train", config.limit, config.seed),
            problem_chats("validation", config.held_out, config.seed),
        )
    sources: dict[str, Callable[[], Iterable[Chat]]] = {
        "gsm8k": lambda: gsm8k_chats(config.path),
        "jsonl": lambda: jsonl_chats(config.path, config.column),
        "hub": lambda: hub_chats(config),
    }
    if config.source not in sources:
        raise UserError("data.source", config.source, f"one of problems, {', '.join(sources)}")
    found = list(itertools.islice(sources[config.source](), config.limit))
    if len(found) <= config.held_out:
        fix = f"data.held_out={max(0, len(found) // 10)}"
        allowed = f"the source has {len(found)} chats, none left to train on"
        raise UserError("data.held_out", config.held_out, allowed, fix)
    random.Random(config.seed).shuffle(found)
    return found[config.held_out :], found[: config.held_out]


def encode(chat: Chat, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Example | None:
    """Token ids of a chat with every assistant turn marked as a target, its end-of-turn token included.

    The text is cut at the turns and each piece tokenized by itself, because that is how the model meets it: the prompt
    is tokenized alone at inference. The template writes all special tokens, so none is added.

    Args:
        max_length: ids beyond it are cut off.

    Returns:
        None where no target is left within ``max_length``.

    Raises:
        UserError: the template rewrites earlier turns, so that a turn cannot be found in the text.
    """
    ids: list[int] = []
    response: list[bool] = []
    done = ""

    def render(messages: Chat, for_answer: bool) -> str:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=for_answer))

    def add(text: str, is_response: bool) -> None:
        new = tokenizer.encode(text, add_special_tokens=False)
        ids.extend(new)
        response.extend([is_response] * len(new))

    for i, message in enumerate(chat):
        if message["role"] != "assistant":
            continue
        prompt = render(chat[:i], True)
        whole = render(chat[: i + 1], False)
        if not prompt.startswith(done) or not whole.startswith(prompt):
            allowed = "its chat template rewrites earlier turns, so targets cannot be marked"
            raise UserError("model", tokenizer.name_or_path, allowed, "train on chats of a single turn")
        turn = whole[len(prompt) :]
        answer = turn.rstrip()  # what a template writes after the end-of-turn marker is no target
        add(prompt[len(done) :], False)
        add(answer, True)
        done = prompt + answer
    ids, response = ids[:max_length], response[:max_length]
    return Example(ids, response) if any(response[1:]) else None


def encode_all(found: Iterable[Chat], tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[Example]:
    """Encoded chats, without those that have no target within ``max_length``."""
    return [example for chat in found if (example := encode(chat, tokenizer, max_length)) is not None]


def data_hash(examples: Iterable[Example]) -> str:
    """SHA-256 (first 16 hex digits) over ids and targets: what was really trained on, whatever it came from."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(f"{example.ids}{''.join('01'[r] for r in example.response)}".encode())
    return digest.hexdigest()[:16]


def prepare(config: DataConfig, tokenizer: PreTrainedTokenizerBase, max_length: int) -> TrainingData:
    """Read, encode and describe the data of a training run.

    Raises:
        UserError: see ``chats`` and ``encode``; or no chat has a target within ``max_length`` tokens.
    """
    train_chats, held_out_chats = chats(config)
    train = encode_all(train_chats, tokenizer, max_length)
    if not train:
        raise UserError("train.max_sequence_length", max_length, "cuts every chat before its first answer", "raise it")
    origin = {"problems": f"generated, seed {config.seed}", "hub": f"{config.dataset}@{config.revision or 'main'}"}
    record = {
        "source": config.source,
        "origin": origin.get(config.source) or Path(str(config.path)).name,
        "hash": data_hash(train),
        "examples": len(train),
    }
    return TrainingData(train, encode_all(held_out_chats, tokenizer, max_length), record)
