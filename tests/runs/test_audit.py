"""Audits of whole runs on digits: what is known to leak is found, and what cannot leak is not.

Every audit here sets ``init``, because the preset of digits does too.
"""

import tempfile
from functools import cache
from typing import Any

import pytest

from fedaf import config as configuration
from fedaf.runs.audit import Kind, MembershipAudit, audit, single_client
from support.errors import raises

STEPS = {"local_steps": 10, "real_batch": 64}
INITS: dict[str, dict[str, Any]] = {
    "real": {"allow_real_init": True, "local_steps": 0},  # photographs
    "clusters": STEPS,
    "mean": STEPS,
    "noise": STEPS,
}


def settings(method: str = "feddm", **options: Any) -> configuration.Config:
    tables = {
        "data": {"name": "digits"},
        "run": {"device": "cpu", "rounds": 2, "threads": 1},
        "model": {"width": 16},
        "method": {"name": method, **options},
    }
    return configuration.build(tables)


@cache
def audited(init: str, kind: Kind) -> MembershipAudit:
    config = settings(ipc=20, server_epochs=1, continue_images=False, init=init, **INITS[init])
    assert config.method.init == init  # type: ignore[attr-defined]
    return audit(config, kind=kind, canaries={"outlier": 300, "natural": 1300}[kind])


def test_photographs_are_found_best_among_natural_canaries():
    """AUC 0.72, 0.59, 0.52 and 0.52 by the nearest image for photographs, clusters, means and noise."""
    found = {init: audited(init, "natural") for init in INITS}
    photographs = found.pop("real")
    assert photographs.nearest.correct == photographs.nearest.guesses == 195
    assert photographs.best.epsilon > 3
    assert photographs.half_out_pixels.share > 0.8  # the others are nearest to a canary by accident
    assert photographs.half_out_pixels.p_value < 1e-20
    for other in found.values():
        assert photographs.nearest.auc > other.nearest.auc + 0.1
        assert photographs.features.auc > other.features.auc + 0.05
        assert photographs.best.epsilon > other.best.epsilon + 2
        assert photographs.half_out_pixels.share > other.half_out_pixels.share + 0.1
        assert photographs.half_out_features.share > other.half_out_features.share + 0.1


def test_fixed_clusters_give_outliers_away_more_than_photographs_do():
    """Every sample is in one of the few cluster means, but only some samples are among the photographs."""
    clusters, photographs = audited("clusters", "outlier"), audited("real", "outlier")
    assert clusters.nearest.auc > 0.9  # 0.97
    assert clusters.nearest.auc > photographs.nearest.auc + 0.2
    assert clusters.best.epsilon > 1.5
    assert clusters.half_out_pixels is None


@pytest.mark.parametrize("kind", ["outlier", "natural"])
def test_few_steps_from_noise_give_nothing_away(kind):
    found = audited("noise", kind)
    assert found.best.epsilon == 0
    assert abs(found.features.auc - 0.5) < 0.06
    assert abs(found.nearest.auc - 0.5) < 0.08


def test_the_images_of_all_rounds_count():
    found = audited("noise", "outlier")
    assert (found.rounds, found.shared_images) == (2, 2 * 10 * 20)
    assert (found.dataset, found.method, found.kind) == ("digits", "feddm", "outlier")


def test_an_audit_repeats_and_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = settings(ipc=10, server_epochs=1, init="mean", local_steps=2, real_batch=16)
    assert audit(config, canaries=40) == audit(config, canaries=40)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["fedaf", "fedaf-plus"])
def test_every_condensing_method_can_be_audited(method):
    config = settings(method, ipc=10, server_epochs=1, server_steps=2, local_steps=2, real_batch=16)
    assert audit(config, canaries=40).shared_images == 2 * 10 * 10


def test_one_client_holds_everything():
    config = single_client(settings())
    assert (config.partition.kind, config.partition.clients, config.federation.participation) == ("iid", 1, 1.0)


def test_what_cannot_be_audited_is_refused():
    with raises("FEDAF-AUDIT-METHOD"):
        audit(settings("fedavg"))
    with raises("FEDAF-AUDIT-CANARIES"):
        audit(settings(), canaries=10)
    with raises("FEDAF-AUDIT-CANARIES"):
        audit(settings(), canaries=5000, kind="natural")
    with raises("FEDAF-AUDIT-KIND"):
        audit(settings(), kind="odd")
