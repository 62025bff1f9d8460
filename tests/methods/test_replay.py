"""The server trains on the images of earlier rounds too: which of them it keeps, and for how long."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fedaf
from fedaf.condensation.options import CondensationOptions
from fedaf.methods.condensed import CondensedRecord
from fedaf.methods.fedaf import FedAF, FedAFOptions
from fedaf.protocol import Client, Key, Payload, Silent
from fedaf.protocol.records import to_tensors
from fedaf.training.fit import Training
from support.faults import FaultyTransport
from support.small import SMALL, SMALL_CONDENSING, SMALL_FEDAF, Rounds, local, small_experiment
from support.tiny import CONVNET, TASK, shard

IPC = 2


def upload(*classes: int, round: int) -> tuple[Tensor, Tensor]:
    """Images whose pixels say their class and round: 10 * class + round."""
    labels = torch.tensor(classes, dtype=torch.int64)
    pixels = (10 * labels + round).to(torch.uint8)
    return labels, pixels.view(-1, 1, 1, 1, 1).expand(-1, IPC, 1, 2, 2).clone()


def record_of(*uploads: tuple[int, ...], window: int) -> CondensedRecord:
    """The record of a client that sent these classes in rounds 1, 2, and so on."""
    labels, images = upload(round=0)
    record = CondensedRecord(labels, images, labels, labels, seen=0)
    for round, classes in enumerate(uploads, 1):
        labels, images = upload(*classes, round=round)
        record = record.adding(labels, images, 100 * labels + round, round=round, window=window)
    return record


def content(record: CondensedRecord) -> list[tuple[int, int]]:
    """The class and round of each row, after checking that its images and samples are those."""
    rows = list(zip(record.classes.tolist(), record.rounds.tolist(), strict=True))
    for (label, round), images, samples in zip(rows, record.images, record.samples.tolist(), strict=True):
        assert images.eq(10 * label + round).all()
        assert samples == 100 * label + round
        assert images.shape == (IPC, 1, 2, 2)
    return rows


def test_a_window_of_one_keeps_the_latest_upload_of_each_class():
    assert content(record_of((0, 1), (0, 1), window=1)) == [(0, 2), (1, 2)]
    record = record_of((0, 1, 2), (1,), window=1)
    assert content(record) == [(0, 1), (2, 1), (1, 2)]
    assert record.seen == 2


def test_the_window_counts_uploads_of_a_class_not_rounds():
    record = record_of((0, 1), (1,), (1,), (0, 1), (1,), window=2)
    assert content(record) == [(0, 1), (0, 4), (1, 4), (1, 5)]


def test_rows_are_kept_as_long_as_the_window_is_not_full():
    assert content(record_of((0, 3), (3,), (0, 3), window=20)) == [(0, 1), (3, 1), (3, 2), (0, 3), (3, 3)]


def test_a_reply_without_images_keeps_the_others_and_says_that_the_client_is_there():
    record = record_of((0, 1), (), (), window=2)
    assert content(record) == [(0, 1), (1, 1)]
    assert record.seen == 3


def test_the_latest_uploads_are_in_order_of_classes():
    record = record_of((1, 2), (0, 2), (1,), window=3).latest
    assert content(record) == [(0, 2), (1, 3), (2, 2)]
    assert content(record_of((), window=3).latest) == []


def experiment(**options):
    plus = {**SMALL_CONDENSING["fedaf-plus"], "local_steps": 1, "server_steps": 1}
    return small_experiment("fedaf-plus", **{**plus, **options})


def test_the_server_keeps_and_trains_on_the_last_uploads_of_every_client():
    rounds = Rounds(experiment(replay=3))
    method = rounds.method
    sent: dict[str, list[Tensor]] = {}
    for number in range(1, 6):
        rounds.play()
        images, labels = method.condensed_data(rounds.server)
        uploads = 0
        for client, counts in rounds.experiment.counts.items():
            classes = method.condensed_classes(counts)
            record = rounds.server.memory.condensed[client]
            assert record.classes.tolist() == classes * min(number, 3)
            assert record.rounds.tolist() == [r for r in range(max(1, number - 2), number + 1) for _ in classes]
            sent.setdefault(client, []).append(record.images[len(record.images) - len(classes) :])
            assert torch.equal(record.images, torch.cat(sent[client][-3:]))
            assert record.images.numel() == min(number, 3) * 5 * len(classes) * math.prod(method.task.image_shape)
            assert record.images.dtype == torch.uint8
            uploads += len(record.classes)
        assert len(images) == len(labels) == 5 * uploads
        of_first = rounds.server.memory.condensed[min(rounds.experiment.counts)]
        assert torch.equal(images[: of_first.images.shape[:2].numel()], of_first.images.flatten(0, 1))
        assert labels[: 5 * len(of_first.classes)].tolist() == [c for c in of_first.classes.tolist() for _ in range(5)]
    assert not any(torch.equal(*pair) for pair in zip(sent["client-1"], sent["client-1"][1:], strict=False))


def test_a_checkpoint_has_these_images_once():
    rounds = Rounds(experiment(replay=2))
    sizes = []
    for _ in range(4):
        rounds.play()
        sizes.append(sum(t.numel() * t.element_size() for t in to_tensors(rounds.server.memory).values()))
    memory = rounds.server.memory
    rows = sum(len(record.classes) for record in memory.condensed.values())
    images = sum(record.images.numel() for record in memory.condensed.values())
    scalars = 8 * len(memory.condensed) + sum(t.numel() * t.element_size() for t in memory.audits.values())
    assert sizes[1] == sizes[2] == sizes[3] == images + 3 * 8 * rows + scalars
    assert sizes[0] < 0.6 * sizes[1]


def test_all_uploads_of_an_absent_client_are_used_until_it_is_too_long_away():
    healthy = experiment(replay=4, max_staleness=1)
    lost = [("client-1", round, "knowledge") for round in (3, 4)]
    fault = lambda client, request, d: Silent() if (client, request.round, request.phase) in lost else d  # noqa: E731
    rounds = Rounds(healthy, FaultyTransport(local(healthy), fault))
    kept = []
    for _ in range(5):
        rounds.play()
        record = rounds.server.memory.condensed.get("client-1")
        kept.append(None if record is None else (sorted(set(record.rounds.tolist())), record.seen))
    assert kept == [([1], 1), ([1, 2], 2), ([1, 2], 2), None, ([5], 5)]
    other = rounds.server.memory.condensed["client-0"]
    assert sorted(set(other.rounds.tolist())) == [2, 3, 4, 5]


def test_people_see_the_latest_images_in_order_of_classes():
    rounds = Rounds(experiment(replay=3))
    for _ in range(2):
        rounds.play()
    shown = rounds.method.exhibits(rounds.server)
    for client, record in rounds.server.memory.condensed.items():
        count = len(record.classes) // 2
        if not count:
            assert client not in shown
            continue
        assert shown[client].classes == record.classes[count:].tolist() == sorted(shown[client].classes)
        assert torch.equal(shown[client].images, record.images[count:])


def test_new_images_in_every_round_come_from_the_same_clusters():
    """The client computes its clusters once and keeps them."""
    rounds = Rounds(experiment())
    rounds.play()
    first = {n: t["pending/clusters"] for n, t in rounds.transport.checkpoint().items() if "pending/clusters" in t}
    images = {n: t["pending/images"] for n, t in rounds.transport.checkpoint().items()}
    assert first
    rounds.play()
    for client, clusters in first.items():
        after = rounds.transport.checkpoint()[client]
        assert torch.equal(after["pending/clusters"], clusters)
        assert not torch.isclose(after["pending/images"], images[client]).all()


def test_images_match_the_clusters_that_they_start_from():
    """All samples of each chosen cluster, none of another; other clusters in another round."""
    ask = Payload({"classes": torch.arange(3), "v": torch.zeros(3, 3)}, {"resample_key": 1})
    data = shard(600, (0, 1, 2))

    def matched(key: int, **options: object) -> list[set[int]]:
        given = {"ipc": 5, "init": "clusters", "continue_images": False, "match_clusters": True, **options}
        method = FedAF(FedAFOptions(**given), TASK, CONVNET)
        job, kept = method.phase("condense")._job(ask, Client("a", data, Key(key)))
        assert method.discloses(data.counts).fewest_samples <= min(len(rows) for rows in job.matched)
        if "clusters" in kept:
            for rows in job.matched:
                of_class = data.labels == data.labels[rows[0]]
                assert set(rows.tolist()) == set(
                    (of_class & torch.isin(kept["clusters"], kept["clusters"][rows])).nonzero().squeeze(1).tolist()
                )
        return [set(rows.tolist()) for rows in job.matched]

    whole = [set(data.rows_of(label).tolist()) for label in range(3)]
    once, again = matched(1), matched(2)
    for part, other, everything in zip(once, again, whole, strict=True):
        assert 5 * 10 <= len(part) < 5 * 20
        assert part < everything
        assert part != other
    for off in ({"match_clusters": False}, {"init": "mean"}, {"continue_images": True}, {"ipc": 40}):
        assert matched(1, **off) == whole


@pytest.mark.parametrize(
    ("counts", "fewest"), [([5000, 0, 0], 500), ([5000, 90, 0], 90), ([700, 5000, 40], 500), ([0, 0, 0], 0)]
)
def test_a_round_rests_on_the_samples_of_as_many_clusters_as_images(counts, fewest):
    options = {"init": "clusters", "continue_images": False}
    parts, whole = (FedAF(FedAFOptions(match_clusters=m, **options), TASK, CONVNET) for m in (True, False))
    assert parts.discloses(counts).fewest_samples == fewest
    assert whole.discloses(counts).fewest_samples == min((n for n in counts if n >= 50), default=0)


def test_no_image_starts_from_fewer_samples_than_asked_for_after_the_data_changed():
    """A node's owner may sort or relabel its folder between two rounds; the clusters in its state are then wrong."""
    before = shard(60, (0, 1, 2))
    after = replace(before, labels=before.labels.sort().values)
    ask = Payload({"classes": torch.arange(3), "v": torch.zeros(3, 3)}, {"resample_key": 1})
    method = FedAF(FedAFOptions(ipc=5, init="clusters", continue_images=False), TASK, CONVNET)
    phase, size = method.phase("condense"), method.options.init_mean_of
    _, kept = phase._job(ask, Client("a", before, Key(1)))
    _, again = phase._job(ask, Client("a", after, Key(2), kept))
    sources = again["sources"]
    assert int((sources >= 0).sum(-1).min()) >= size
    assert all(after.labels[rows[rows >= 0]].eq(label).all() for label, rows in enumerate(sources))


@pytest.mark.parametrize(
    ("given", "images", "epochs"),
    [
        ({"server_epochs": 7}, 1000, 7),
        ({"server_steps": 10, "server_batch": 100}, 1000, 1),
        ({"server_steps": 11, "server_batch": 100}, 1000, 2),
        ({"server_steps": 11, "server_batch": 100}, 1001, 2),  # the single last image is dropped
        ({"server_steps": 11, "server_batch": 100}, 1002, 1),
        ({"server_steps": 3, "server_batch": 256}, 50, 3),
        ({"server_steps": 5, "server_batch": 256}, 1, 5),
        ({"server_steps": 3000, "server_batch": 256}, 20_000, 38),
    ],
)
def test_server_steps_are_rounded_up_to_whole_epochs(given, images, epochs):
    assert CondensationOptions.model_validate(given).epochs(images) == epochs


def test_the_average_of_the_servers_weights_reaches_back_over_a_share_of_its_steps():
    options = CondensationOptions(server_steps=3000, server_batch=100, server_average=1 / 6)
    assert options.ema(10_000) == pytest.approx(1 - 1 / 500)
    assert options.ema(10_050) == pytest.approx(1 - 1 / (30 * 101 / 6))
    assert CondensationOptions(server_epochs=2, server_batch=100, server_average=1.0).ema(1000) == pytest.approx(0.95)
    assert CondensationOptions(server_steps=1, server_average=0.1).ema(10) == 0.0  # the last weights
    assert CondensationOptions().ema(1000) is None


def test_as_many_steps_are_taken_as_the_options_say(monkeypatch):
    steps: list[int] = []
    descend = Training._descend
    monkeypatch.setattr(Training, "_descend", lambda self: steps.append(1) or descend(self))
    rounds = Rounds(experiment(replay=2, server_steps=7, server_batch=16))
    for _ in range(3):
        steps.clear()
        rounds.play()
        count = len(rounds.method.condensed_data(rounds.server)[1])
        batches = count // 16 + (count % 16 > 1)
        assert len(steps) == batches * math.ceil(7 / batches) >= 7


def test_fedaf_sends_as_many_bytes_with_replay_as_without():
    sizes = []
    for options in ({"replay": 1}, {"replay": 5}):
        rounds = Rounds(small_experiment("fedaf", **{**SMALL_FEDAF, "local_steps": 1, **options}))
        rounds.play()
        sizes.append(rounds.play().upload)
    assert sizes[0] == sizes[1]


PARTS = {
    "resampling": "distance",
    "lambda_loc": 1.0,
    "match_spread": 1.0,
    "match_distribution": 1.0,
    "image_lr_decay": True,
    "continue_images": False,
    "init": "clusters",
    "match_clusters": True,
    "replay": 3,
    "server_steps": 8,
    "server_average": 0.3,
    "server_cutmix": 0.5,
    "server_weighting": 0.5,
}
OFF = {
    "resampling": "blend",
    "lambda_loc": 1e-4,
    "match_spread": 0.0,
    "match_distribution": 0.0,
    "image_lr_decay": False,
    "continue_images": True,
    "init": "mean",
    "match_clusters": False,
    "replay": 1,
    "server_steps": 0,
    "server_average": 0.0,
    "server_cutmix": 0.0,
    "server_weighting": 0.0,
}


def played(method: str, options: dict, rounds: int = 2) -> Rounds:
    found = Rounds(small_experiment(method, **options))
    for _ in range(rounds):
        found.play()
    return found


@pytest.mark.parametrize("method", ["fedaf", "feddm"])
def test_other_condensing_methods_have_every_part_too(method):
    known = type(small_experiment(method).method).Options.model_fields
    options = {name: value for name, value in PARTS.items() if name in known}
    assert len(options) == (13 if method == "fedaf" else 11)
    rounds = played(method, {**SMALL_FEDAF, **options}, rounds=3)
    losses = rounds.server.log["losses"]
    assert {"dm", "spread", "distribution", "ce"} <= losses.keys()
    assert all(math.isfinite(value) for value in losses.values())
    assert {len(set(r.rounds.tolist())) for r in rounds.server.memory.condensed.values() if len(r.classes)} == {3}


def test_fedaf_with_the_values_of_fedaf_plus_is_fedaf_plus_and_the_other_way_round():
    small = {"ipc": 5, "local_steps": 4, "real_batch": 16, "server_epochs": 3, "server_batch": 32, "rho": 3.0}
    for given in (PARTS, OFF):
        one, other = (played(method, {**small, **given}) for method in ("fedaf", "fedaf-plus"))
        for name, tensor in one.server.model.items():
            assert torch.equal(tensor, other.server.model[name]), name
        assert one.server.log == other.server.log


@pytest.mark.parametrize("part", list(OFF))
def test_each_part_of_fedaf_plus_can_be_switched_off_by_itself(part):
    small = SMALL_CONDENSING["fedaf-plus"]
    whole, without = (played("fedaf-plus", {**small, **given}) for given in ({}, {part: OFF[part]}))
    changed = [n for n, t in whole.server.model.items() if not torch.equal(t, without.server.model[n])]
    assert changed, "the part has no effect"
    logged = {"match_spread": "spread", "match_distribution": "distribution"}
    assert "spread" in whole.server.log["losses"]
    assert "distribution" in whole.server.log["losses"]
    if part in logged:
        assert logged[part] not in without.server.log["losses"]


def test_a_part_is_switched_off_on_the_command_line(call, tmp_path):
    sets = ["model.width=8", "method.resampling=blend", "method.match_spread=0", "method.server_cutmix=0"]
    sets += ["method.image_lr_decay=false", "method.replay=1", "method.init=mean", "method.continue_images=true"]
    more = [part for value in sets for part in ("--set", value)]
    line = ["run", "--method", "fedaf-plus", "--preset", "quick", "--rounds", "1", "--device", "cpu", "-q"]
    code, _, err = call(*line, "--local-steps", "2", "--set", "method.server_steps=2", *more, "--out", "run")
    assert (code, err) == (0, "")
    config = fedaf.config.read_toml(tmp_path / "run" / "config.toml")["method"]
    assert (config["resampling"], config["match_spread"], config["replay"], config["init"]) == ("blend", 0, 1, "mean")


def test_replies_name_the_extra_terms_and_their_number_is_that_of_the_method():
    schemas = []
    for options in ({}, {"match_spread": 1.0, "match_distribution": 0.5}):
        method = FedAF(FedAFOptions(ipc=IPC, **options), TASK, CONVNET)
        classes = torch.tensor([0, 2])
        schemas.append(method.phases[1].schema(Payload({"classes": classes, "v": torch.zeros(2, 3)})))
    assert schemas[1].scalars.keys() - schemas[0].scalars.keys() == {"loss_spread", "loss_distribution"}
    assert schemas[1].fields.keys() == schemas[0].fields.keys()


def test_a_run_of_fedaf_plus_repeats():
    settings = {**SMALL, "rounds": 2, "method": "fedaf-plus", **SMALL_CONDENSING["fedaf-plus"]}
    torch.manual_seed(1)
    first = fedaf.run(**settings)
    torch.manual_seed(2)
    again = fedaf.run(**settings)
    assert first.curve == again.curve
    for tensor, same in zip(first.model.state_dict().values(), again.model.state_dict().values(), strict=True):
        assert torch.equal(tensor, same)


def test_the_key_of_the_run_decides_the_statistics_of_the_first_model():
    method = FedAF(FedAFOptions(ipc=IPC), TASK, CONVNET)
    one, again, other = (method.initial(Key(k)).model["features.1.running_mean"] for k in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.isclose(one, other).all()
