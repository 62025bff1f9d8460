"""FedAF's server loss; its phases and formulas are tested in tests/condensation and tests/federation."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedaf.methods.condensing import CondensedMemory, CondensedRecord
from fedaf.methods.fedaf import FedAF, FedAFOptions, GlobalKnowledge
from fedaf.protocol import Key, ServerState
from support.tiny import CLASSES, CONVNET, ENGINE, TASK

IMAGES = torch.randint(0, 256, (CLASSES, 2, 1, 4, 4), dtype=torch.uint8, generator=Key(0).torch())
RECORD = CondensedRecord(torch.arange(CLASSES), IMAGES, torch.full((CLASSES,), 2), seen=2)
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


def test_condensed_data_are_copied_to_the_device_for_students_of_all_of_it_only(monkeypatch):
    reads: list[str] = []
    for students in ("batch", "all"):
        method = method_of(lgkm_students=students)
        server = server_of(method)
        data = method.condensed_data(server)
        monkeypatch.setattr(method, "condensed_data", lambda server, s=students, d=data: reads.append(s) or d)
        method.server_loss(method.build_model(Key(0)), server, ENGINE)
    assert reads == ["all"]
