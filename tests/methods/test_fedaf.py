"""FedAF's server loss; its phases and formulas are tested in tests/condensation and tests/federation."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedaf.methods.condensed import CondensedMemory, CondensedRecord
from fedaf.methods.fedaf import FedAF, FedAFOptions, GlobalKnowledge
from fedaf.models.statistics import estimate_statistics
from fedaf.protocol import Key, ServerState
from support.tiny import CLASSES, CONVNET, ENGINE, TASK

IMAGES = torch.randint(0, 256, (CLASSES, 2, 1, 4, 4), dtype=torch.uint8, generator=Key(0).torch())
RECORD = CondensedRecord(
    torch.arange(CLASSES), IMAGES, torch.ones(CLASSES, dtype=torch.int64), torch.full((CLASSES,), 2), seen=2
)
R = torch.softmax(torch.randn(CLASSES, CLASSES, generator=Key(1).torch()), 1)


def method_of(**options) -> FedAF:
    return FedAF(FedAFOptions(**{"ipc": 2, "server_epochs": 1, "server_batch": 64, **options}), TASK, CONVNET)


def server_of(method: FedAF, round: int = 2) -> ServerState:
    knowledge = GlobalKnowledge({}, R.log(), R, torch.tensor([True, True, False]))
    server = method.initial(Key(0))
    return replace(server, round=round, scratch=knowledge, memory=CondensedMemory({"client-0": RECORD}))


@torch.no_grad()
def by_hand(method: FedAF, server: ServerState) -> float:
    """L_LGKM over the two classes known, of the model before its first step."""
    model = method.build_model(Key(0)).train()
    model.load_state_dict(server.model)
    logits = model((IMAGES.flatten(0, 1) / 255 - 0.5) / 0.25)
    t = torch.softmax(logits.view(CLASSES, 2, -1).mean(1) / method.options.temperature, 1)[:2]
    r = R[:2]
    return float((F.kl_div(t.log(), r, reduction="sum") + F.kl_div(r.log(), t, reduction="sum")) / 4)


@pytest.mark.parametrize("lambda_glob", [0.01, 2.0])
@pytest.mark.parametrize("students", ["batch", "all"])
def test_lgkm_is_logged_without_its_weight(lambda_glob, students):
    method = method_of(lambda_glob=lambda_glob, lgkm_students=students)
    server = server_of(method)
    losses = method.finish(server, ENGINE).log["losses"]
    assert losses.keys() == {"ce", "lgkm"}
    assert losses["lgkm"] == pytest.approx(by_hand(method, server), rel=1e-3)


@pytest.mark.parametrize(
    ("options", "round"), [({}, 1), ({"lgkm": False}, 2), ({"lambda_glob": 0.0}, 2), ({"lgkm_from_round": 5}, 4)]
)
def test_there_is_no_lgkm_where_it_is_off_and_before_its_first_round(options, round):
    method = method_of(**options)
    assert method.finish(server_of(method, round), ENGINE).log["losses"].keys() == {"ce"}


def test_with_cutmix_lgkm_is_of_the_images_that_are_not_mixed():
    method = method_of(lambda_glob=2.0)
    server = server_of(method)
    model = method.build_model(Key(0)).eval()
    loss = method.server_loss(model, server, ENGINE)
    images = (IMAGES.flatten(0, 1) / 255 - 0.5) / 0.25
    ids = torch.arange(CLASSES).repeat_interleave(2)
    labels = F.one_hot(ids, CLASSES).float()
    labels[1] = torch.tensor([0.75, 0.25, 0.0])  # of class 0, one image is left
    labels[2:4] = torch.tensor([0.5, 0.5, 0.0])  # of class 1, none is
    found = loss(images, labels)
    t = torch.softmax(model(images[:1]) / method.options.temperature, 1)
    r = R[:1]
    expected = (F.kl_div(t.log(), r, reduction="sum") + F.kl_div(r.log(), t, reduction="sum")) / 2
    torch.testing.assert_close(found["lgkm"].term, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found["ce"], F.cross_entropy(model(images), labels))
    whole = loss(images, ids)["lgkm"].term
    assert not torch.isclose(whole, found["lgkm"].term)


def test_with_cutmix_and_an_average_both_losses_are_logged_and_finite():
    method = method_of(server_cutmix=0.5, server_average=0.5, server_epochs=3)
    losses = method.finish(server_of(method), ENGINE).log["losses"]
    assert losses.keys() == {"ce", "lgkm"}
    assert all(math.isfinite(value) for value in losses.values())


@pytest.mark.parametrize(("batch", "count"), [(64, 1), (4, 1), (2, 3)])
def test_the_statistics_of_averaged_weights_are_those_of_the_condensed_images(batch, count):
    """Their mean over batches of equal size; a smaller last one is left out."""
    method = method_of(server_average=0.5, server_epochs=3, server_batch=batch)
    server = server_of(method)
    finished = method.finish(server, ENGINE).model
    images, _ = method.condensed_data(server)
    order = torch.randperm(len(images), generator=server.key.derive("statistics", server.round).torch())
    batches = [(images[rows] / 255 - 0.5) / 0.25 for rows in order.split(batch) if len(rows) == min(batch, len(images))]
    assert len(batches) == count
    model = method.build_model(Key(0))
    model.load_state_dict(finished)
    estimate_statistics(model, batches)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(finished[name].float(), tensor.float(), rtol=1e-4, atol=1e-5)


def test_without_an_average_the_statistics_are_those_of_training():
    def finished(**options) -> dict[str, torch.Tensor]:
        method = method_of(server_epochs=3, **options)
        return dict(method.finish(server_of(method), ENGINE).model)

    plain, averaged = finished(), finished(server_average=1e-9)  # an average of the last step alone
    tracked = "features.1.num_batches_tracked"
    assert plain[tracked] == 3 + 1  # and once before round 1
    assert averaged[tracked] == 1
    torch.testing.assert_close(plain["features.0.weight"], averaged["features.0.weight"])
    assert not torch.isclose(plain["features.1.running_var"], averaged["features.1.running_var"]).all()


def test_condensed_data_are_copied_to_the_device_for_students_of_all_of_it_only(monkeypatch):
    reads: list[str] = []
    for students in ("batch", "all"):
        method = method_of(lgkm_students=students)
        server = server_of(method)
        data = method.condensed_data(server)
        monkeypatch.setattr(method, "condensed_data", lambda server, s=students, d=data: reads.append(s) or d)
        method.server_loss(method.build_model(Key(0)), server, ENGINE)
    assert reads == ["all"]
