"""A client refuses requests beyond its policy, with the reason, before any work."""

import math
import re
import tomllib
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaf import config as configuration
from fedaf.client.serving import Admission, serve
from fedaf.client.state import UNKNOWN_CLASS, ClientState
from fedaf.config.policies import default_policy, policy_toml, read_policy
from fedaf.config.presets import PRESETS
from fedaf.data.registry import DATASETS
from fedaf.errors import BelowQuorum
from fedaf.federation.rounds import RoundRules
from fedaf.methods.condensing import CondensingMethod
from fedaf.methods.registry import FEDERATED, METHODS
from fedaf.privacy.copy_audit import AUDIT_SCALARS, audit_tensor
from fedaf.protocol import Disclosure, Failed, Guarantee, Key, Payload, Policy, Replied, Request, Silent, rounded_up
from fedaf.runs.experiment import disclosure
from fedaf.transports.local import LocalTransport
from support import ROOT
from support.commandline import TINY, assert_one_sentence
from support.errors import raises
from support.faults import FaultyTransport
from support.plugins import METHOD, activate, install
from support.small import SMALL_FEDAF, Rounds, shards, small_experiment

HONEST = {**SMALL_FEDAF, "ipc": 5, "min_samples": 10, "local_steps": 10}


def rounds_under(policy: Policy, method: str = "fedaf", quorum: float = 0.01, **options) -> Rounds:
    experiment = small_experiment(method, **options)
    admission = Admission(policy, experiment.method, method)
    transport = LocalTransport(shards(experiment), experiment.engine, admission)
    return Rounds(experiment, transport, RoundRules(quorum=quorum))


def reasons(policy: Policy, method: str = "fedaf", **options) -> dict[str, str]:
    """Return the reason of every client that refuses the first round."""
    rounds = rounds_under(policy, method, **options)
    seen: dict[str, str] = {}

    def listen(client, request, delivery):
        if isinstance(delivery, Failed):
            seen[client] = delivery.reason
        return delivery

    rounds.transport = FaultyTransport(rounds.transport, listen)
    try:
        rounds.play()
    except BelowQuorum:
        assert len(seen) == len(rounds.experiment.counts)
    return seen


def test_an_honest_run_is_admitted_by_the_default_policy():
    assert reasons(default_policy(), **HONEST) == {}
    assert reasons(default_policy(), "feddm", **HONEST) == {}
    assert reasons(default_policy(), "fedavg", local_epochs=1) == {}


@pytest.mark.parametrize("method", ["fedaf", "feddm"])
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"local_steps": 0}, ["[FEDAF-POLICY-STEPS]", "min_local_steps 10"]),
        (
            {"init": "real", "allow_real_init": True},
            ["[FEDAF-POLICY-INITIALISATION]", "'real'", "initialisations mean, clusters, noise"],
        ),
        (
            {"init": "mean", "continue_images": False},
            ["[FEDAF-POLICY-INITIALISATION]", "'new means'", "init = 'clusters'", "continue_images = true"],
        ),
        ({"min_samples": 5, "init": "noise"}, ["[FEDAF-POLICY-SAMPLES]", "min_samples 10"]),
    ],
    ids=["zero steps", "real init", "new means", "few samples"],
)
def test_a_hostile_server_is_refused_by_the_default_policy(method, asked, words):
    refused = reasons(default_policy(), method, **{**HONEST, **asked})
    holders = [c for c, counts in small_experiment("fedaf").counts.items() if any(counts)]
    assert refused
    assert all(word in reason for reason in refused.values() for word in words)
    if "min_samples" not in asked:
        assert set(refused) == set(holders)


@pytest.mark.parametrize(("options", "named"), [({"init": "mean"}, "mean"), ({"init": "clusters"}, "clusters")])
def test_what_images_start_from_is_named_as_the_policy_names_it(options, named):
    for method in ("fedaf", "feddm"):
        for continued, expected in ((True, named), (False, "new means" if named == "mean" else named)):
            asked = {**HONEST, **options, "continue_images": continued}
            assert small_experiment(method, **asked).method.discloses([100]).initialisation == expected
            assert reasons(default_policy(initialisations=[expected]), method, **asked) == {}


@pytest.mark.parametrize("method", ["fedaf", "feddm"])
def test_a_class_with_too_few_samples_for_the_images_of_a_round_is_left_out(method):
    """Of N samples at most N / 2 images are sent; the client takes part with its other classes."""
    rounds = rounds_under(default_policy(), method, **{**HONEST, "ipc": 20, "min_samples": 20})
    condensed = {c: rounds.method.condensed_classes(of) for c, of in rounds.experiment.counts.items()}
    few = {c: [k for k in labels if rounds.experiment.counts[c][k] < 40] for c, labels in condensed.items()}
    assert any(0 < len(few[c]) < len(condensed[c]) for c in few)
    assert rounds.play().failures == {}
    for client, labels in condensed.items():
        sent = rounds.server.log["disclosure"][client]["images"]
        assert sent == {str(label): 20 for label in labels if label not in few[client]}


@pytest.mark.parametrize("method", ["fedaf", "feddm"])
def test_a_run_without_any_image_ends_with_the_reason(method):
    rounds = rounds_under(default_policy(max_images=0), method, **HONEST)
    with raises("FEDAF-CONDENSE-NO-IMAGES") as error:
        rounds.play()
    assert all(word in str(error.value) for word in ("round 1", "max_images", "max_total_images_per_sample"))


def test_nothing_is_computed_for_what_is_refused_and_the_others_continue_run_together(monkeypatch):
    rounds = rounds_under(default_policy(min_samples=60), **HONEST)
    condense = rounds.method.phase("condense")
    worked: list[list[str]] = []
    real = type(condense).work

    def work(self, asks, clients, engine):
        worked.append([client.id for client in clients])
        return real(self, asks, clients, engine)

    monkeypatch.setattr(type(condense), "work", work)
    report = rounds.play()
    assert 0 < len(report.failures) < len(report.asked)
    assert worked == [report.accepted]
    assert all(reason.startswith("knowledge: ") for reason in report.failures.values())
    assert all("min_samples 60 [FEDAF-POLICY-SAMPLES]" in reason for reason in report.failures.values())


def test_images_are_counted_over_rounds_and_runs_whatever_became_of_the_replies():
    rounds = rounds_under(default_policy(max_images=30), **HONEST)
    sizes = {c: dict.fromkeys(rounds.method.condensed_classes(n), 5) for c, n in rounds.experiment.counts.items()}
    lossy = FaultyTransport(
        rounds.transport, lambda c, request, delivery: Silent() if request.phase == "condense" else delivery
    )
    inner, rounds.transport = rounds.transport, lossy
    with pytest.raises(BelowQuorum):
        rounds.play()
    states = {name: ClientState.from_tensors(record) for name, record in inner.checkpoint().items()}
    assert {name: state.images_sent for name, state in states.items()} == sizes
    for name, state in states.items():
        request = Request("another run", 1, "knowledge", 0, Key(1), Payload())
        reopened = state.opened(request)
        assert reopened.images_sent == sizes[name]
        asked = rounds.method.phases[0], shards(rounds.experiment)[name], reopened
        twice = 2 * sum(sizes[name].values())
        for most, permitted in ((twice - 1, {}), (twice, sizes[name])):
            admission = Admission(default_policy(max_images=most), rounds.method, "fedaf")
            assert admission.admit(*asked) == permitted


def test_the_allowance_in_closed_form():
    policy, counts, asked = Policy(methods=[], max_total_images_per_sample=0.5), [100, 40, 39, 0], {0: 10, 1: 10, 2: 10}
    assert policy.allowance(asked, counts, {}) == asked
    assert policy.allowance(asked, counts, {0: 10, 1: 10, 2: 10}) == {0: 10, 1: 10}  # 20 of 39 samples are over half
    assert policy.allowance(asked, counts, {0: 40, 1: 11}) == {0: 10, 2: 10}
    assert policy.allowance(asked, counts, {0: 41, 1: 20, 2: 19}) == {}
    assert policy.allowance({}, counts, {}) == policy.allowance({3: 1}, counts, {}) == {}
    assert Policy(methods=[], max_total_images_per_sample=0.29).allowance({0: 29}, counts, {}) == {0: 29}
    assert 0.29 * 100 < 29  # by a rounding error
    policy = Policy(methods=[], max_images_per_sample=0.25, max_total_images_per_sample=0.5)
    assert policy.left_out(asked, counts) == [2]  # 10 of 39 samples are over a quarter
    first, total = "max_images_per_sample", "max_total_images_per_sample"
    assert policy.withheld(asked, counts, {0: 41}) == {0: total, 2: first}
    at_most = policy.model_copy(update={"max_images": 60})
    assert at_most.withheld(asked, counts, {0: 41}) == {0: total, 2: first}
    assert at_most.withheld(asked, counts, {0: 51}) == {0: total, 1: "max_images", 2: first}
    assert policy.allowance(asked, counts, {}) == {0: 10, 1: 10}
    assert policy.allowance(asked, counts, {0: 41}) == {1: 10}


def test_a_limit_in_all_permits_the_images_of_a_round_or_none():
    policy = Policy(methods=[], max_total_images_per_sample=0.5, max_images=50)
    asked, counts = {0: 10, 1: 10}, [100, 20]
    assert policy.allowance(asked, counts, {0: 30}) == asked
    assert policy.allowance(asked, counts, {0: 31}) == {}
    assert policy.allowance(asked, counts, {0: 30, 1: 10}) == {0: 10}  # class 1 is at its own limit
    assert policy.allowance(asked, counts, {UNKNOWN_CLASS: 30, 0: 1}) == {}


@given(
    counts=st.lists(st.integers(0, 300), min_size=1, max_size=6),
    ipc=st.integers(1, 60),
    rounds=st.integers(0, 30),
    at_once=st.sampled_from([0.29, 0.5, 1.0]),
    ratio=st.sampled_from([0.1, 0.29, 0.5, 1.0, 10.0]),
    max_images=st.none() | st.integers(0, 2000),
)
def test_no_sequence_of_rounds_exceeds_the_limits_and_none_stops_too_early(
    counts, ipc, rounds, at_once, ratio, max_images
):
    limits = {"max_images_per_sample": at_once, "max_total_images_per_sample": ratio, "max_images": max_images}
    policy = Policy(methods=[], **limits)
    asked = {label: ipc for label, count in enumerate(counts) if count >= ipc}
    found, exact = policy.forecast(asked, counts, rounds), Fraction(str(ratio))
    for label, number in found.images.items():
        assert number % ipc == 0
        assert number <= exact * counts[label]
    assert max_images is None or sum(found.images.values()) <= max_images
    assert found.per_sample == max((n / counts[label] for label, n in found.images.items()), default=0)
    assert found.left_out == [label for label in asked if ipc > Fraction(str(at_once)) * counts[label]]
    most = {label: min(rounds, exact * counts[label] // ipc) for label in asked if label not in found.left_out}
    if max_images is None:
        assert found.images == {label: ipc * n for label, n in most.items() if n}
        short = [n + 1 for n in most.values() if n < rounds]
        assert found.limited_from == min(short, default=None)
        nothing = len(short) == len(most) and asked and rounds
        assert found.silent_from == (max(short, default=1) if nothing else None)
    elif found.silent_from is not None:
        assert rounds >= found.silent_from >= (found.limited_from or 0)


def test_a_method_that_ignores_its_allowance_sends_nothing():
    policy = default_policy()
    policy.release(Payload(), {0: 5, 2: 5}, {0: 5, 2: 7})
    policy.release(Payload(), {0: 5}, None)
    for images, words in (({0: 6, 2: 5}, "1 images of class 0"), ({0: 5, 1: 3}, "3 images of class 1")):
        with raises("FEDAF-POLICY-TOTAL") as refusal:
            policy.release(Payload(), images, {0: 5, 2: 5})
        assert words in str(refusal.value)


CONDENSING = [name for name in METHODS.names if issubclass(METHODS.find(name), CondensingMethod)]


@pytest.mark.parametrize("dataset", DATASETS.names)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", CONDENSING)
def test_every_preset_keeps_to_the_default_policy_in_all_rounds(dataset, preset, method):
    """Even the smallest class that is condensed keeps to the total limit, if it is sent in every round of the run."""
    tables = {"data": {"name": dataset}, "method": {"name": method}}
    config = configuration.build(tables, preset=preset)
    rounds, ipc, fewest = config.run.rounds, config.method.ipc, config.method.threshold
    counts = [fewest, 2 * ipc, 10 * fewest]
    taken = disclosure(config, counts)
    default_policy().admit(method, taken)
    whole = default_policy(max_images_per_sample=ipc).forecast(taken.images, counts, rounds)  # no limit of one round
    assert (whole.left_out, whole.limited_from) == ([], None)
    assert whole.images == dict.fromkeys(range(3), rounds * ipc)
    assert whole.per_sample == rounds * ipc / fewest <= 20
    assert default_policy().forecast(taken.images, counts, rounds).left_out == ([0] if fewest < 2 * ipc else [])


def test_ratios_are_rounded_up_to_one_two_or_five():
    steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    for below, step in pairwise(steps):
        assert rounded_up(step) == rounded_up(math.nextafter(below, 1e9)) == rounded_up((below + step) / 2) == step
    assert rounded_up(0) == 0
    assert (rounded_up(10 / 50), rounded_up(10 / 49), rounded_up(1000 / 50)) == (0.2, 0.5, 20)  # no rounding errors


def test_what_came_out_too_like_a_private_image_is_not_sent_and_not_kept():
    experiment = small_experiment("fedaf", **{**HONEST, "init": "real", "allow_real_init": True, "local_steps": 0})
    lax = {"initialisations": ["real"], "min_local_steps": 0}
    for policy, sent in ((default_policy(**lax), False), (default_policy(**lax, max_likeness=60.0), True)):
        rounds = Rounds(experiment, LocalTransport(shards(experiment), experiment.engine), RoundRules(quorum=0.01))
        admission = Admission(policy, experiment.method, "fedaf")
        name, shard = next(iter(shards(experiment).items()))
        classes = torch.tensor(experiment.method.condensed_classes(shard.counts))
        ask = Payload({"classes": classes, "v": torch.zeros(len(classes), 10)}, {"resample_key": 1})
        state = ClientState(run="test", scratch=rounds.server.model, scratch_round=1)
        request = Request("test", 1, "condense", 0, Key(1), ask)
        phase = experiment.method.phase("condense")
        ((_, delivery, after),) = serve(
            phase, {name: request}, {name: shard}, {name: state}, experiment.engine, admission
        )
        assert isinstance(delivery, Replied if sent else Failed)
        assert bool(after.images_sent) == (after.pending is not None) == sent
        if not sent:
            assert all(word in delivery.reason for word in ("58.9 dB", "max_likeness 40", "[FEDAF-POLICY-LIKENESS]"))


def test_a_copy_is_not_sent_in_a_later_round_either():
    """The audit covers all rounds so far, the images of this reply among them."""
    experiment = small_experiment("fedaf", **{**HONEST, "init": "real", "allow_real_init": True, "local_steps": 0})
    name, shard = next(iter(shards(experiment).items()))
    classes = torch.tensor(experiment.method.condensed_classes(shard.counts))
    harmless = {
        **dict.fromkeys(AUDIT_SCALARS, 0.0),
        "audit_images": 1000,
        "audit_psnr_mean": 15.0,
        "audit_psnr_max": 20.0,
    }
    state = ClientState(
        run="test",
        committed={"audit": audit_tensor(harmless)},
        scratch=experiment.method.initial(Key(0)).model,
        scratch_round=2,
    )
    ask = Payload({"classes": classes, "v": torch.zeros(len(classes), 10)}, {"resample_key": 1})
    admission = Admission(default_policy(initialisations=["real"], min_local_steps=0), experiment.method, "fedaf")
    ((_, delivery, after),) = serve(
        experiment.method.phase("condense"),
        {name: Request("test", 2, "condense", 1, Key(1), ask)},
        {name: shard},
        {name: state},
        experiment.engine,
        admission,
    )
    assert isinstance(delivery, Failed)
    assert "[FEDAF-POLICY-LIKENESS]" in delivery.reason
    assert after.pending is None


def test_a_method_that_does_not_tell_what_it_takes_must_be_named_by_the_client():
    with raises("FEDAF-POLICY-METHOD") as refusal:
        default_policy().admit("mine:Means", None)
    assert "mine:Means" in str(refusal.value)
    Policy(methods=["mine:Means"]).admit("mine:Means", None)
    with raises("FEDAF-POLICY-METHOD") as refusal:
        Policy(methods=[]).admit("fedavg", Disclosure(100))
    assert re.search("none.*fedavg", str(refusal.value))


GUARANTEE, SIMULATED = Guarantee(4.0, 1e-5), Guarantee(4.0, 1e-5, simulated=True)


@pytest.mark.parametrize(
    ("bounds", "privacy", "code", "words"),
    [
        ({"require_privacy": True}, None, "FEDAF-POLICY-PRIVACY", "require_privacy.*privacy.epsilon"),
        ({"max_epsilon": 8.0}, None, "FEDAF-POLICY-PRIVACY", "max_epsilon 8 .*privacy.epsilon"),
        ({"require_privacy": True}, SIMULATED, "FEDAF-POLICY-SIMULATED", "simulate_seed.*require_privacy"),
        ({"max_epsilon": 8.0}, SIMULATED, "FEDAF-POLICY-SIMULATED", "simulate_seed.*max_epsilon 8 "),
        ({}, Guarantee(1.0, 2e-5), "FEDAF-POLICY-DELTA", "2e-05.*max_delta 1e-05"),
        ({"max_epsilon": 3.9}, GUARANTEE, "FEDAF-POLICY-EPSILON", "epsilon 4.*max_epsilon 3.9"),
    ],
)
def test_a_policy_limits_epsilon_and_delta(bounds, privacy, code, words):
    policy = default_policy(**bounds)
    with raises(code) as refusal:
        policy.admit("fedaf", Disclosure(100, privacy=privacy))
    assert re.search(words, str(refusal.value))
    if privacy is None:
        with raises(code):  # a custom method that does not say
            policy.admit("fedaf", None)


def test_a_policy_admits_privacy_within_its_limits():
    for bounds in ({}, {"require_privacy": True}, {"max_epsilon": 4.0}, {"max_epsilon": 4.0, "max_delta": 1e-4}):
        default_policy(**bounds).admit("fedaf", Disclosure(100, privacy=GUARANTEE))
    default_policy(max_delta=1e-4).admit("fedaf", Disclosure(100, privacy=Guarantee(90.0, 1e-4)))
    default_policy().admit("fedaf", Disclosure(100, privacy=SIMULATED))  # it would admit a run without privacy too


def test_with_privacy_a_refusal_does_not_depend_on_exact_counts_but_other_limits_stay():
    with raises("FEDAF-POLICY-SAMPLES"):
        default_policy().admit("fedaf", Disclosure(3, {0: 5}, 10, "noise"))
    default_policy().admit("fedaf", Disclosure(3, {0: 5}, 10, "noise", GUARANTEE))
    with raises("FEDAF-POLICY-STEPS"):
        default_policy().admit("fedaf", Disclosure(3, {0: 5}, 9, "noise", GUARANTEE))
    with raises("FEDAF-POLICY-INITIALISATION"):
        default_policy().admit("fedaf", Disclosure(3, {0: 5}, 10, "real", GUARANTEE))


def test_the_page_on_policies_lists_every_limit():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/howto/policies.md").read_text(), re.MULTILINE)
    assert rows == list(Policy.model_fields)


def test_a_client_that_sends_nothing_has_nothing_to_refuse():
    default_policy().admit("fedaf", Disclosure(0))


def test_the_default_policy_admits_every_built_in_method_and_nothing_else():
    assert default_policy().methods == read_policy("default").methods == list(FEDERATED)
    with pytest.raises(ValueError, match="methods"):
        Policy()


def test_a_plugin_is_refused_until_a_policy_names_it(tmp_path, monkeypatch, call):
    install(tmp_path / "site", "fedaf.methods", {"nothing": "fedaf_nothing:Nothing"}, fedaf_nothing=METHOD)
    activate(tmp_path / "site", monkeypatch, METHODS)
    assert METHODS.find("nothing").__name__ == "Nothing"
    assert "nothing" not in read_policy("default").methods
    assert "nothing" not in call("policy", "show")[1]
    for name in ("nothing", "fedaf_nothing:Nothing"):
        with raises("FEDAF-POLICY-METHOD") as refusal:
            default_policy().admit(name, None)
        assert name in str(refusal.value)
        (tmp_path / "config.toml").write_text(f'[method]\nname = "{name}"\n')
        code, out, _ = call("policy", "check", "config.toml")
        assert (code, out.count("refuses: ")) == (1, 10)
        (tmp_path / "policy.toml").write_text(f'methods = ["fedaf", "{name}"]\n')
        read_policy(str(tmp_path / "policy.toml")).admit(name, None)
        assert call("policy", "check", "config.toml", "--policy", "policy.toml")[0] == 0


def test_bounds_that_a_file_leaves_out_have_their_defaults(tmp_path):
    (tmp_path / "policy.toml").write_text("min_samples = 3\n")
    assert read_policy(str(tmp_path / "policy.toml")) == default_policy(min_samples=3)


def test_a_policy_survives_its_file(tmp_path):
    policy = Policy(methods=["fedaf"], max_images=7, max_likeness=30.5, max_epsilon=4.0, require_privacy=True)
    (tmp_path / "policy.toml").write_text(policy_toml(policy))
    assert read_policy(str(tmp_path / "policy.toml")) == policy
    assert tomllib.loads(policy_toml(default_policy())) == default_policy().model_dump(exclude_none=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("min_sample = 3", ["[FEDAF-CONFIG-KEY]", "'min_sample'", "did you mean 'min_samples'?", "a policy"]),
        ("max_epsilon = 0", ["[FEDAF-CONFIG-VALUE]", "max_epsilon is 0"]),
        ("max_delta = 1", ["[FEDAF-CONFIG-VALUE]", "max_delta is 1"]),
        ("min_samples = 0", ["[FEDAF-CONFIG-VALUE]", "min_samples is 0"]),
        ("initialisations = ['photographs']", ["[FEDAF-CONFIG-VALUE]", "initialisations.0 is 'photographs'"]),
        ("methods = 'fedaf'", ["[FEDAF-CONFIG-VALUE]", "methods is 'fedaf'"]),
        ("methods = ['fedav']", ["[FEDAF-POLICY-FILE-METHOD]", "'fedav'", "did you mean 'fedavg'?"]),
        ("][", ["[FEDAF-CONFIG-TOML]", "policy.toml"]),
    ],
)
def test_a_bad_policy_is_one_sentence(call, tmp_path, text, words):
    (tmp_path / "policy.toml").write_text(text)
    for args in (["policy", "show", "policy.toml"], ["run", *TINY, "--policy", "policy.toml"]):
        code, _, err = call(*args)
        assert_one_sentence(code, err, words)


def test_a_run_under_a_policy_ends_with_the_reasons_and_keeps_its_settings(call, tmp_path):
    code, _, err = call("run", *TINY, "--policy", "default", "--out", "run")
    assert code == 1
    assert "min_local_steps 10 [FEDAF-POLICY-STEPS]" in err
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["federation"]["policy"] == "default"


def test_checking_a_policy_names_each_client_and_why_it_refuses(call, tmp_path):
    assert call("run", *TINY, "--seed", "1", "--out", "run")[0] == 0
    code, out, _ = call("policy", "check", "run/config.toml")
    assert code == 1
    assert out.count("client-") == out.count("refuses: ") == 10
    (tmp_path / "mine.toml").write_text("min_local_steps = 1\nmax_images_per_sample = 1.0\nmin_samples = 5\n")
    code, out, _ = call("policy", "check", "run/config.toml", "--policy", "mine.toml")
    assert code == 0
    assert out.count("takes part") == 10
    code, out, _ = call("policy", "check", "run/config.toml", "--policy", "mine.toml", "--dataset", "digits")
    assert code == 0
    assert "you" in out


def test_checking_asks_for_what_the_server_asks_for_whatever_the_clients_data(call, tmp_path):
    """The configuration sets ipc; the client's data decide whether that is too much, over all rounds."""
    images, labels = np.zeros((120, 8, 8), np.uint8), np.arange(120) % 2
    np.savez(tmp_path / "mine.npz", x_train=images, y_train=labels, x_test=images[:4], y_test=labels[:4])
    (tmp_path / "asked.toml").write_text('[data]\nname = "digits"\n')  # its preset: 10 images, 10 rounds
    code, out, _ = call("policy", "check", "asked.toml", "--dataset", "npz:mine.npz")
    assert (code, "takes part" in out) == (0, True)
    assert {"200", "1.7"} <= set(out.split())  # 2 classes, 10 images, 10 rounds; 100 images of 60 samples
    (tmp_path / "mine.toml").write_text("max_images = 199\n")
    code, out, _ = call("policy", "check", "asked.toml", "--dataset", "npz:mine.npz", "--policy", "mine.toml")
    assert (code, "no new images from round 10" in " ".join(out.split())) == (0, True)
    assert "180" in out.split()
    rare = {"x_train": images, "y_train": (np.arange(120) < 15).astype(int), "x_test": images[:4], "y_test": labels[:4]}
    np.savez(tmp_path / "rare.npz", **rare)
    code, out, _ = call("policy", "check", "asked.toml", "--dataset", "npz:rare.npz")
    assert (code, "100" in out.split()) == (0, True)  # of class 0 only
    assert "takes part; no images of class 1: too few samples for max_images_per_sample 0.5" in " ".join(out.split())
    few = {"x_train": images[:8], "y_train": labels[:8], "x_test": images[:4], "y_test": labels[:4]}
    np.savez(tmp_path / "few.npz", **few)
    code, out, _ = call("policy", "check", "asked.toml", "--dataset", "npz:few.npz")
    assert (code, "nothing to send" in out) == (0, True)
