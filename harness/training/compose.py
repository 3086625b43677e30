"""Hydra's side of training: the schema, and composition from a list of overrides."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from harness.config import CONF, check_choices, check_keys, explain
from harness.errors import UserError
from harness.training.recipe import TrainConfig

GROUPS = ("method", "model", "data", "train")


def register() -> None:
    """Make the schema known to Hydra; harmless when repeated."""
    ConfigStore.instance().store("train_schema", node=TrainConfig)


def open_objective(arguments: Sequence[str]) -> list[str]:
    """Let ``objective.name=value`` be given as it is: the names are known to the objective, not to Hydra."""
    return [f"++{text}" if text.startswith("objective.") else text for text in arguments]


def compose(overrides: Sequence[str], *, sweep: bool = False) -> DictConfig:
    """conf/train.yaml with overrides, checked against the schema.

    Args:
        sweep: the overrides span several trainings: check their names, and return the default configuration.

    Raises:
        UserError: an unknown key or choice (with the nearest), or a value of another type.
    """
    register()
    overrides = open_objective(overrides)
    # A run that trains on demand is inside Hydra already, which knows one configuration at a time.
    state, before = GlobalHydra.instance(), GlobalHydra.instance().hydra
    state.hydra = None
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            parsed = OverridesParser.create().parse_overrides(list(overrides))
            check_choices(parsed, {group: sorted(p.stem for p in (CONF / group).glob("*.yaml")) for group in GROUPS})
            chosen = [str(o.input_line) for o in parsed if o.key_or_group in GROUPS and not o.is_sweep_override()]
            default = hydra_compose("train", chosen)
            check_keys(parsed, default, GROUPS)
            return default if sweep else hydra_compose("train", list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise in_train(explain(error, overrides)) from None
    except UserError as error:
        raise in_train(error) from None
    finally:
        state.hydra = before


def in_train(error: UserError) -> UserError:
    """The shared checks point to the main command; here the training command is meant."""
    return UserError(error.key, error.value, error.allowed, error.fix.replace("harness.run", "harness.train"))
