"""Typed schema of a run's configuration; what it does not admit is refused before any work starts.

Hydra composes (``conf/config.yaml`` and the groups beside it), this module knows the types and ranges, and turns what
Hydra says about a mistake into one message that names the key, the nearest right one, and the fix.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.errors import UserError
from harness.evaluation.suites import SuiteConfig

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"

SHOW_KEYS = "python -m harness.run --cfg job shows every key"
DTYPES = ("float32", "bfloat16", "float16", "float64")
CHOICES = {
    "confidence": ("probability", "margin", "entropy"),
    "alignment": ("paper", "released"),
    "cache": ("cursor", "block", "none"),
    "accept_limit": ("block_size", "cache_block"),
    "dtype": DTYPES,
}
NAMING = ("_target_", "name")  # of a method's YAML; the other keys are the method's own options
AT_LEAST_ONE = ("block_size", "cache_block", "batch_size", "threads", "suite.limit", "suite.max_gen_toks")


@dataclass
class RunConfig:
    """One cell. Values and their meaning are in conf/config.yaml; groups bring their own keys."""

    method: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    suite: SuiteConfig = field(default_factory=SuiteConfig)
    tracking: dict[str, Any] = field(default_factory=dict)
    tau: float = MISSING
    block_size: int = MISSING
    confidence: str = MISSING
    verify: bool = MISSING
    temperature: float = MISSING
    alignment: str | None = MISSING
    variant: str | None = MISSING
    checkpoint: str | None = MISSING
    cache: str = MISSING
    cache_block: int = MISSING
    accept_limit: str = MISSING
    seed: int = MISSING
    dtype: str | None = MISSING
    batch_size: int = MISSING
    device: str = MISSING
    sandbox: str = MISSING
    threads: int | None = MISSING
    train_on_demand: bool = MISSING
    results_dir: str = MISSING
    checkpoints_dir: str | None = MISSING
    dry_run: bool = MISSING
    status: bool = MISSING


def register() -> None:
    """Make the schema and the resolvers known to Hydra; harmless when repeated."""
    ConfigStore.instance().store("run_schema", node=RunConfig)
    OmegaConf.register_new_resolver("project_root", lambda: str(ROOT), replace=True)


def validate(cfg: DictConfig) -> None:
    """Check choices and ranges of the shared keys, whether or not the cell's method has them.

    Raises:
        UserError: the first key out of range, or one that does not exist.
    """
    for prefix, node, schema in (("", cfg, RunConfig), ("suite.", cfg.suite, SuiteConfig)):
        known = [prefix + f.name for f in fields(schema)]
        for key in map(str, node):
            if prefix + key not in known:  # Hydra's +key=value can add one that nobody reads
                raise unknown_key(prefix + key, node[key], known)
    for key, allowed in CHOICES.items():
        value = cfg[key]
        if value is not None and value not in allowed:
            raise UserError(key, value, f"one of {', '.join(allowed)}", suggest(key, value, allowed))
    for key in AT_LEAST_ONE:
        value = OmegaConf.select(cfg, key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UserError(key, value, "a whole number, at least 1", f"{key}=1 or more")
    if cfg.seed < 0:
        raise UserError("seed", cfg.seed, "a whole number from 0")


def suggest(key: str, value: object, allowed: Iterable[str]) -> str:
    """``key=nearest`` where something allowed is near what was written, else nothing."""
    near = difflib.get_close_matches(str(value), list(allowed), n=1, cutoff=0.5)
    return f"{key}={near[0]}" if near else ""


def check_choices(overrides: Iterable[Any], group_options: Mapping[str, list[str]]) -> None:
    """Check group choices in parsed overrides, before composition, where the nearest right one is known.

    Args:
        group_options: choices of every config group ("method": ["ar_sft", "mars"]).

    Raises:
        UserError: a choice that does not exist.
    """
    for override in overrides:
        key = override.key_or_group
        for value in override_values(override) if key in group_options else ():
            if value not in group_options[key]:
                allowed = ", ".join(group_options[key])
                raise UserError(key, value, f"one of {allowed}", suggest(key, value, group_options[key]))


def check_keys(overrides: Iterable[Any], cfg: DictConfig, groups: Collection[str]) -> None:
    """Check the keys that parsed overrides change.

    Args:
        cfg: composed with the group choices alone, so that it has every key there is. Of a group that is swept over
            only methods are checked, each for its options: keys of the others differ between the cells.

    Raises:
        UserError: a key that does not exist.
    """
    overrides = list(overrides)
    swept = {o.key_or_group for o in overrides if o.is_sweep_override()} & set(groups)
    known = [*known_keys(cfg), *groups]
    methods = _method_options(overrides, cfg)
    for override in overrides:
        key = override.key_or_group
        if override.is_add() or override.is_force_add() or override.is_delete() or key.startswith("hydra"):
            continue
        if key.startswith("method."):
            if any(key.split(".")[1] not in (*own, *NAMING) for own in methods.values()):
                raise unknown_option(key, override.get_value_string(), methods, known)
        elif key.split(".")[0] not in swept and key not in known:
            # A training takes objective.option, so that a decoding option is no suggestion there.
            raise unknown_key(key, override.get_value_string(), known, methods if "suite" in cfg else None)


def _method_options(overrides: Iterable[Any], cfg: DictConfig) -> dict[str, list[str]]:
    """Own options of each method that the overrides choose, by its name; inside Hydra, which finds its YAML."""
    chosen = [o for o in overrides if o.key_or_group == "method" and o.is_sweep_override()]
    nodes = [hydra.compose(f"method/{name}").method for o in chosen for name in override_values(o)]
    if not chosen:
        nodes = [cfg.get("method") or {}]
    return {str(node.get("name")): [str(key) for key in node if key not in NAMING] for node in nodes}


def unknown_key(
    key: str, value: object, known: Iterable[str], methods: Mapping[str, Collection[str]] | None = None
) -> UserError:
    """The error for a key that no configuration has, with the nearest one that some has.

    Args:
        methods: own options of the chosen methods, where the key may be one of them without its prefix.
    """
    having = [name for name, own in (methods or {}).items() if key in own]
    if having:
        some = "" if len(having) == len(methods or {}) else f" Of these methods {_has(having)} it."
        return UserError(key, value, "no such key", f"did you mean method.{key}={value}?{some}")
    inside, _, last = key.rpartition(".")
    siblings = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == inside}
    near = [siblings[name] for name in difflib.get_close_matches(last, siblings, n=1, cutoff=0.5)]
    meant = f"did you mean {near[0]}={value}?" if near else SHOW_KEYS
    return UserError(key, value, "no such key", meant)


def unknown_option(
    key: str, value: object, methods: Mapping[str, Collection[str]], known: Collection[str]
) -> UserError:
    """The error for ``method.option`` that not every chosen method has: who has it, or else what they have.

    Args:
        methods: own options of the chosen methods.
        known: keys of the configuration, among which the option may be one that all methods share.
    """
    option = key.removeprefix("method.")
    having = [name for name, own in methods.items() if option in own]
    lacking = [name for name in methods if name not in having]
    message = f"no such key: {_has(lacking)} no option {option}"
    if having:
        return UserError(key, value, f"{message} ({_has(having)})", f"set it with method={','.join(having)} only")
    if option in known:
        return UserError(key, value, message, f"did you mean {option}={value}?")
    near = difflib.get_close_matches(option, [name for own in methods.values() for name in own], n=1, cutoff=0.5)
    theirs = "; ".join(f"{name} has {', '.join(own) or 'no options of its own'}" for name, own in methods.items())
    return UserError(key, value, message, f"did you mean method.{near[0]}={value}? {theirs}" if near else theirs)


def _has(names: Sequence[str]) -> str:
    return f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'}"


def override_values(override: Any) -> Iterator[str]:
    """The values of an override, one for each cell of the sweep that it spans."""
    if override.is_sweep_override():
        if override.is_discrete_sweep():
            yield from override.sweep_string_iterator()
    elif override.value() is not None:
        yield override.get_value_element_as_str()


def known_keys(cfg: DictConfig, prefix: str = "") -> Iterator[str]:
    """Dotted names of all nodes, without Hydra's own."""
    for key in map(str, cfg):
        if not prefix and key == "hydra":
            continue
        name = f"{prefix}{key}"
        yield name
        if OmegaConf.is_dict(cfg._get_node(key)) and not OmegaConf.is_missing(cfg, key):
            node = cfg._get_node(key)
            if isinstance(node, DictConfig) and not node._is_none():
                yield from known_keys(node, f"{name}.")


# What OmegaConf calls its types, in a reader's words.
_TYPES = {"Float": "a number", "Integer": "a whole number", "Boolean": "true or false", "String": "text"}


def explain(error: HydraException | OmegaConfBaseException, overrides: Iterable[str]) -> UserError:
    """Turn an error of Hydra's composition into a message about what the user typed."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__
    key = getattr(cause, "full_key", None)
    typed = dict(o.lstrip("+~").split("=", 1) for o in overrides if "=" in o)
    if key and not str(error).startswith("Could not override"):
        wanted = re.search(r"could not be converted to (\w+)", str(cause))
        allowed = _TYPES.get(wanted[1], wanted[1]) if wanted else str(cause).splitlines()[0]
        return UserError(key, typed.get(key, ""), allowed)
    if unknown := re.match(r"Could not override '([^']+)'", str(error)):
        return UserError(unknown[1], typed.get(unknown[1], ""), "no such key", SHOW_KEYS)
    if "--multirun" in str(error):
        several = next((o for o in overrides if "," in o), "")
        key, _, value = several.partition("=")
        return UserError(key, value, "one value without -m", "python -m harness.run -m … sweeps over several")
    return UserError("command line", " ".join(overrides), str(error).strip())
