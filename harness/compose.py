"""From a command line to the configurations of its cells, as Hydra's own sweeper and launcher would compose them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra import version
from hydra._internal.config_search_path_impl import SearchPathQuery
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from harness import config
from harness.errors import UserError

GROUPS = ("method", "model", "suite", "tracking")
Found = tuple[DictConfig, list[str]]


def expand(
    overrides: Sequence[str], multirun: bool, config_name: str = "config", config_dir: str | None = None
) -> tuple[list[Found], bool]:
    """Configurations of a command line's cells, each with the overrides that tell it from the others.

    Args:
        overrides, multirun, config_name, config_dir: as Hydra's command line has them.

    Returns:
        The cells in order; and whether a sweeper other than Hydra's basic one will choose them as it goes: the only
        cell here is then the configuration that it starts from.

    Raises:
        UserError: an unknown key or choice (with the nearest), a value of another type, or a malformed override.
    """
    with _hydra(config_dir):
        try:
            return _expand(list(overrides), multirun, config_name)
        except (HydraException, OmegaConfBaseException) as error:
            _check_names(list(overrides), config_name)
            raise config.explain(error, overrides) from None


@contextmanager
def _hydra(config_dir: str | None) -> Iterator[None]:
    """Hydra over our configuration directory, whatever the current one; leaves no trace for ``hydra.main``."""
    config.register()
    version.setbase("1.3")
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    path = create_config_search_path(str(config.CONF))
    if config_dir is not None:
        if not Path(config_dir).is_dir():
            raise UserError("--config-dir", config_dir, "a directory")
        path.prepend("command-line", f"file://{Path(config_dir).resolve()}", SearchPathQuery(provider="schema"))
    try:
        Hydra.create_main_hydra2("run", path)
        yield
    finally:
        GlobalHydra.instance().hydra = before


def _expand(overrides: list[str], multirun: bool, config_name: str) -> tuple[list[Found], bool]:
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    parsed = parser.parse_overrides(overrides)
    fixed = [str(o.input_line) for o in parsed if not o.is_sweep_override()]
    master = hydra.compose(config_name, fixed if multirun else overrides, return_hydra_config=True)
    if not multirun and master.hydra.mode != RunMode.MULTIRUN:
        return [(_without_hydra(master), overrides)], False
    if not master.hydra.sweeper._target_.endswith(".BasicSweeper"):
        return [(_without_hydra(master), fixed)], True
    params = [f"{key}={value}" for key, value in (master.hydra.sweeper.params or {}).items()]
    swept = parser.parse_overrides(params + overrides)
    several = {o.get_key_element() for o in swept if o.is_sweep_override()}
    lines = [line for batch in BasicSweeper.split_arguments(swept, None) for line in batch]
    return [
        (hydra.compose(config_name, line), [o for o in line if o.split("=")[0] in several]) for line in lines
    ], False


def _without_hydra(cfg: DictConfig) -> DictConfig:
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def _check_names(overrides: list[str], config_name: str) -> None:
    """After composition failed: was it a name? Then the message can hold the nearest right one.

    Raises:
        UserError: a group choice or a key that does not exist.
    """
    loader = GlobalHydra.instance().config_loader()
    try:
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
        if any(o.key_or_group == "hydra.searchpath" for o in parsed):
            return  # it brings groups that are not known here
        config.check_choices(parsed, {group: sorted(loader.get_group_options(group)) for group in GROUPS})
        chosen = [str(o.input_line) for o in parsed if o.key_or_group in GROUPS and not o.is_sweep_override()]
        config.check_keys(parsed, hydra.compose(config_name, chosen, return_hydra_config=True), GROUPS)
    except HydraException:
        return  # it was something else
