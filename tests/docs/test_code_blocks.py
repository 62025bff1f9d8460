"""Every block of code in the documentation runs, with few rounds and small data in place of what a page names."""

import tomllib

import pytest

from fedaf.config import configuration
from fedaf.config.tables import TABLES
from fedaf.data.registry import AUGMENTATIONS, DATASETS, PARTITIONS
from fedaf.engine.registry import ENGINES
from fedaf.federation.trackers.registry import TRACKERS
from fedaf.methods.registry import METHODS
from fedaf.models.registry import MODELS
from fedaf.protocol import Policy
from fedaf.reproduce.cells import config_of, identity_of
from fedaf.sweep import grid
from support.pages import GENERATED, NETWORK, OTHER, RUN, blocks, pages, runs
from support.reader import follow
from support.tiny_runs import smaller

PAGES = {name: blocks(path.read_text()) for name, path in pages().items() if path != GENERATED}
GROUPS = {registry.group for registry in (AUGMENTATIONS, DATASETS, PARTITIONS, ENGINES, METHODS, MODELS, TRACKERS)}
SKIPPED = [(name, block.line, block.reason) for name, found in PAGES.items() for block in found if block.reason]


def test_every_block_has_a_language_that_says_what_it_is():
    known = (*RUN, *OTHER)
    strange = [(name, b.line, b.language) for name, found in PAGES.items() for b in found if b.language not in known]
    assert strange == []


def test_few_blocks_are_not_run_and_each_says_why():
    assert len(SKIPPED) <= 10, "\n".join(map(str, SKIPPED))
    assert all(len(reason.split()) >= 3 for _, _, reason in SKIPPED)


def test_there_are_blocks_to_run():
    assert sum(block.language in RUN and not block.reason for found in PAGES.values() for block in found) >= 80


@pytest.fixture
def small_runs(monkeypatch):
    """Runs get small configurations, and none of these is left in a cache for other tests."""
    cached = (config_of, identity_of, grid._config, grid._identity)
    for function in cached:
        function.cache_clear()
    monkeypatch.setattr(configuration, "Config", smaller(configuration.Config))
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("page", [name for name in PAGES if runs(PAGES[name]) and name not in NETWORK])
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    follow(PAGES[page], tmp_path, monkeypatch)


TOML = [(name, block) for name, found in PAGES.items() for block in found if block.language == "toml"]


@pytest.mark.parametrize(("page", "block"), TOML, ids=[f"{name}:{block.line}" for name, block in TOML])
def test_toml_is_what_it_claims_to_be(page, block):
    values = tomllib.loads(block.code)
    if set(values) <= {"preset", *TABLES}:
        configuration.build(values)
    elif set(values) <= set(Policy.model_fields):
        Policy.model_validate(values)
    elif "node" in values or set(values) <= {"host", "port"}:
        from fedaf.deploy.machines import LinkSettings, NodeSettings  # needs Flower

        of = NodeSettings if "node" in values else LinkSettings
        of.model_validate({"superlink": "127.0.0.1:8000", **values} if "node" in values else values)
    elif "project" in values:
        for group, names in values["project"]["entry-points"].items():
            assert group in GROUPS, group
            for target in names.values():
                module, _, name = target.partition(":")
                file = f"{module.rpartition('.')[2]}.py"
                assert any(b.file == file and f"class {name}(" in b.code for b in PAGES[page]), target
    else:
        assert block.file, f"{page}, line {block.line}: neither a configuration nor a file that a command reads"
