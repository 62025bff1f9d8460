"""FedProx against its closed form."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from fedaf.methods.fedprox import proximal
from fedaf.protocol import Key, Payload
from support.tiny import CONVNET, a_client, assert_close, gradients, make, parameters, pixels, shard, worked


def moved(model: nn.Module) -> nn.Module:
    """The same network with other weights."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(torch.randn(p.shape, generator=Key(3).torch()))
    return other


def test_the_proximal_term_is_the_squared_distance():
    model = nn.Linear(2, 1)
    anchor = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        model.weight += torch.tensor([[3.0, 4.0]])
        model.bias += 12.0
    assert proximal(model, anchor).item() == 9 + 16 + 144


def test_its_gradient_is_mu_times_the_way_from_the_global_model():
    here = CONVNET.build(Key(1))
    anchor = {name: p.detach().clone() for name, p in here.named_parameters()}
    model, mu = moved(here), 0.3
    found = gradients(mu / 2 * proximal(model, anchor), model)
    assert_close(found, {name: mu * (p.detach() - anchor[name]) for name, p in model.named_parameters()})


def test_running_statistics_are_not_held_near_the_global_ones():
    model = CONVNET.build(Key(1))
    anchor = {name: p.detach().clone() for name, p in model.named_parameters()}  # no statistics to compare with
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.add_(5.0)
    assert proximal(model, anchor).item() == 0


def test_two_local_steps_by_hand():
    """The second step starts away from the global model, so the proximal term pulls it back."""
    held, lr, mu = shard(12), 0.1, 0.7
    method = make("fedprox", mu=mu, lr=lr, local_epochs=2)
    w_g = method.initial(Key(0)).model
    model = method.build_model(Key(0))
    model.load_state_dict(w_g)
    for _ in range(2):
        ce = gradients(F.cross_entropy(model(pixels(held)), held.labels), model)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= lr * (ce[name] + mu * (p - w_g[name]))
    reply = worked(method, Payload(w_g), a_client(held)).reply
    assert_close(parameters(method, reply.tensors), parameters(method, model.state_dict()))

    free = worked(make("fedprox", mu=0.0, lr=lr, local_epochs=2), Payload(w_g), a_client(held)).reply
    once = worked(make("fedavg", lr=lr), Payload(w_g), a_client(held)).reply
    pulls = {name: free.tensors[name] - lr * mu * (once.tensors[name] - w_g[name]) for name in parameters(method, w_g)}
    assert_close(parameters(method, reply.tensors), pulls)
    assert max(float((free.tensors[n] - reply.tensors[n]).abs().max()) for n in pulls) > 1e-3


def test_with_mu_zero_it_is_fedavg():
    held = shard(12)
    w_g = make("fedavg").initial(Key(0)).model
    left, right = (
        worked(make(name, local_epochs=3, **options), Payload(w_g), a_client(held)).reply.tensors
        for name, options in (("fedprox", {"mu": 0.0}), ("fedavg", {}))
    )
    assert all(torch.equal(left[name], right[name]) for name in left)
