"""What a sweep would run: its cells, each with its identity and run key, before any of them is run.

A run key is the hash of everything that can change the cell's output and of nothing else, so two cells
with one key are one cell, and a cell whose record exists is done. Planning reads configurations and hashes files; it
loads no model and imports neither transformers nor lm-eval.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from harness import compose, config
from harness.engine import ENGINE_VERSION
from harness.evaluation import suites
from harness.models import checkpoints, registry
from harness.results.keys import run_key
from harness.results.store import Store
from methods.accept import check_tau, check_temperature
from methods.contract import Method

# Offered to every method; it takes those that it declares.
SHARED_AXES = ("tau", "block_size", "confidence", "verify", "temperature")


@dataclass(frozen=True)
class Cell:
    """One configuration of a sweep.

    Attributes:
        cfg: as composed.
        overrides: what tells it from the other cells of the sweep.
        method: built from the settings, so known to be valid.
        identity: what its output depends on.
        key: run key.
        missing: the checkpoint is still to be trained; identity and key are then provisional, because the weights are
            part of them, and the cell has no record yet.
    """

    cfg: DictConfig
    overrides: tuple[str, ...]
    method: Method
    identity: dict[str, Any]
    key: str
    missing: checkpoints.MissingCheckpoint | None = None

    @property
    def title(self) -> str:
        """Method with tau, B, and what else differs from its defaults: the name of its progress bar."""
        return " ".join([str(self.cfg.method.name), *settings_text(self.method)])

    @property
    def label(self) -> str:
        """The same with model and suite, for a message."""
        asked = suites.title(self.cfg.suite.name, self.cfg.suite.tasks)
        return f"{self.title} on {self.identity['model']['model']}, {asked}"


@dataclass(frozen=True)
class Plan:
    """The distinct cells of a sweep, in order, and what the sweep asked for more than once.

    Attributes:
        merged: for each cell, the overrides of further sweep cells that are the same cell.
        adaptive: the sweeper chooses cells as it goes, so that only the configuration it starts from is here.
    """

    cells: list[Cell]
    merged: list[list[tuple[str, ...]]]
    store: Store
    adaptive: bool = False

    def state(self, cell: Cell) -> str:
        """State of the cell on disk (done, partial, failed or missing)."""
        return self.store.cell(cell.key).state()

    def notices(self) -> list[str]:
        """What settings of the sweep do not matter to which of its methods; a reason is told once.

        Methods to which the same settings never matter share a line.
        """
        merged: dict[tuple[str, ...], list[tuple[Cell, list[str]]]] = {}  # by the keys that do not matter
        for cell, others in zip(self.cells, self.merged, strict=True):
            if others:
                settings = _settings([cell.overrides, *others])
                keys = tuple(dict.fromkeys(o.split("=")[0] for text in settings for o in text.split()))
                merged.setdefault(keys, []).append((cell, settings))
        lines: list[str] = []
        for keys, found in merged.items():
            counts = Counter(str(cell.cfg.method.name) for cell, _ in found)
            every = Counter(str(cell.cfg.method.name) for cell in self.cells)
            names = [name for name in counts if counts[name] == every[name]]  # no cell of theirs tells otherwise
            if len(names) > 1:
                lines.append(_common_notice(names, keys, is_once=all(counts[name] == 1 for name in names)))
            lines += [
                _notice(str(cell.cfg.method.name), keys, settings)
                for cell, settings in found
                if len(names) == 1 or cell.cfg.method.name not in names
            ]
        return list(dict.fromkeys(lines))


def settings_text(method: Method) -> list[str]:
    """What ``Method.changed`` says, as a user writes it, with B for block_size; tau and B first."""
    shown = {"block_size": "B"}
    order = sorted(method.changed().items(), key=lambda item: ("tau", "block_size", item[0]).index(item[0]))
    return [
        f"{shown.get(name, name)}={f'{value:g}' if isinstance(value, float) else str(value)}".replace("True", "true")
        for name, value in order
    ]


def _settings(asked: list[tuple[str, ...]]) -> list[str]:
    """What tells sweep cells from each other, each once, with truth values as the command line has them."""
    same = set.intersection(*map(set, asked))
    texts = (" ".join(o for o in overrides if o not in same) for overrides in asked)
    return list(dict.fromkeys(re.sub(r"=(True|False)\b", lambda found: found[0].lower(), text) for text in texts))


def _notice(name: str, keys: Sequence[str], settings: Sequence[str]) -> str:
    if not keys:
        return f"{name}: asked for more than once, run once"
    verb = "does" if len(keys) == 1 else "do"
    return (
        f"{name}: {len(settings)} settings ({'; '.join(settings)}) are one cell, "
        f"because {' and '.join(keys)} {verb} not change its output"
    )


def _common_notice(names: Sequence[str], keys: Sequence[str], is_once: bool) -> str:
    """Of several methods; ``is_once``: each of them has one cell in the sweep."""
    once = "runs once" if is_once else "runs once for each of the other settings"
    if not keys:
        return f"{', '.join(names)}: asked for more than once, each {once}"
    verb = "does" if len(keys) == 1 else "do"
    return f"{', '.join(names)}: {' and '.join(keys)} {verb} not change their output, so each {once}"


def build_method(cfg: DictConfig) -> Method:
    """The method of a cell, its options checked by the method itself.

    Raises:
        UserError: an option that it does not have, or a value out of range.
    """
    check_tau(cfg.tau, cfg.confidence)
    check_temperature(cfg.temperature)
    return make_method(cfg.method, {name: cfg[name] for name in SHARED_AXES})


def make_method(node: DictConfig, shared: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> Method:
    """The method that a ``conf/method`` node describes, with shared settings, and options over the node's own.

    Raises:
        UserError: as ``Method.from_settings``.
    """
    settings: Any = OmegaConf.to_container(node, resolve=True)
    cls: type[Method] = get_class(settings["_target_"])
    own = {key: value for key, value in settings.items() if key not in config.NAMING}
    return cls.from_settings(shared, own | dict(options or {}))


def checkpoint_request(cfg: DictConfig, method: Method) -> dict[str, Any]:
    """What a cell asks of the registry of checkpoints (arguments of ``checkpoints.resolve`` and ``load``).

    Alignment and the variants named after options of an objective say nothing to a method trained without them: AR SFT
    has one checkpoint, whatever variant of MARS it is compared with.
    """
    trained = method.trained_as
    options = trained.objective.option_names() if trained.objective else ()
    variant = cfg.variant
    for word, option in (("released", "alignment"), ("no_sft_loss", "sft_loss")):
        if variant is not None and option not in options:
            variant = "_".join(variant.split(word)).strip("_") or None
    return {
        "block_size": trained.trained_block_size,
        "variant": variant,
        "alignment": cfg.alignment if "alignment" in options else None,
        "checkpoint": cfg.checkpoint,
        "checkpoints_dir": cfg.checkpoints_dir,
    }


def identify(cfg: DictConfig, method: Method, weights: dict[str, Any]) -> dict[str, Any]:
    """Everything that can change a cell's output; ``weights`` is the identity of model and checkpoint."""
    cache = {"mode": cfg.cache, "accept_limit": cfg.accept_limit}
    if cfg.cache == "block":
        cache["block"] = cfg.cache_block
    return {
        "method": {
            "name": method.name,
            "version": method.version,
            "axes": {name: getattr(method, name) for name in method.axes()},
        },
        "model": weights,
        "suite": _suite_identity(OmegaConf.to_yaml(cfg.suite), suite_config(cfg)),
        "cache": cache,
        "seed": cfg.seed,
        "engine": ENGINE_VERSION,
    }


_suite_identities: dict[str, dict[str, Any]] = {}


def _suite_identity(text: str, suite: suites.SuiteConfig) -> dict[str, Any]:
    """Computed once per process and suite: it reads or generates every document to hash it."""
    if text not in _suite_identities:
        _suite_identities[text] = suites.identity(suite)
    return _suite_identities[text]


def suite_config(cfg: DictConfig) -> suites.SuiteConfig:
    """The suite as its own dataclass."""
    suite = OmegaConf.to_object(cfg.suite)
    assert isinstance(suite, suites.SuiteConfig)
    return suite


def make_cell(cfg: DictConfig, overrides: Sequence[str] = ()) -> Cell:
    """Validate one configuration and compute its identity.

    Raises:
        UserError: anything wrong with it that can be known without loading a model.
    """
    config.validate(cfg)
    method = build_method(cfg)
    model = registry.spec(cfg.model)
    missing = None
    try:
        request = checkpoint_request(cfg, method)
        weights = checkpoints.weights_identity(model, method, request, cfg.dtype)
    except checkpoints.MissingCheckpoint as error:
        if not cfg.train_on_demand:
            raise
        missing = error
        wanted = dataclasses.asdict(error.request)
        weights = {"model": model.name, "to train": wanted, "dtype": cfg.dtype or model.dtype}
    identity = identify(cfg, method, weights)
    return Cell(cfg, tuple(overrides), method, identity, run_key(identity), missing)


def make_plan(
    overrides: Sequence[str], multirun: bool, config_name: str = "config", config_dir: str | None = None
) -> Plan:
    """Compose, validate and identify every cell of a command line.

    Args:
        overrides, multirun, config_name, config_dir: as Hydra's command line has them.

    Raises:
        UserError: the first mistake in any cell, before any of them runs.
    """
    found, adaptive = compose.expand(overrides, multirun, config_name, config_dir)
    return dataclasses.replace(merge([make_cell(cfg, own) for cfg, own in found]), adaptive=adaptive)


def merge(cells: Sequence[Cell]) -> Plan:
    """Drop cells that are the same as an earlier one, and remember which."""
    distinct: dict[str, tuple[Cell, list[tuple[str, ...]]]] = {}
    for cell in cells:
        if cell.key in distinct:
            distinct[cell.key][1].append(cell.overrides)
        else:
            distinct[cell.key] = (cell, [])
    store = Store(cells[0].cfg.results_dir)
    return Plan([cell for cell, _ in distinct.values()], [others for _, others in distinct.values()], store)
