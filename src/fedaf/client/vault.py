"""A client's vault for one request: its ledger, the limits of its policy, and what the request is for."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedaf.privacy.ledger import Ledger, Limit
from fedaf.privacy.options import PrivacyOptions
from fedaf.protocol import Guarantee, Method, Policy, Refused, Request, Tensors

_NAME = "name"  # of the tensor that identifies a stored release


@dataclass(frozen=True)
class SiteVault:
    """Implements ``fedaf.protocol.Vault`` with the ledger of a site.

    Args:
        ledger: The site's ledger, which outlives runs.
        request: The request that is served.
        privacy: The options of the run.
        policy: The client's policy, if it has one.
    """

    ledger: Ledger
    request: Request
    privacy: PrivacyOptions
    policy: Policy | None = None

    def obtain(
        self,
        name: str,
        *,
        number: int,
        mu: float,
        make: Callable[[], Tensors],
        prepare: Callable[[], None] | None = None,
    ) -> Tensors:
        """Return a release of this run, stored or new. A run has one release of each number, whatever a server asks."""
        assert self.privacy.epsilon is not None
        digest = torch.tensor(list(bytes.fromhex(name)), dtype=torch.uint8)
        limit = None if self.policy is None else Limit(self.policy.max_epsilon, self.policy.max_delta)
        simulated = self.privacy.simulate_seed is not None
        stored = self.ledger.obtain(
            hashlib.sha256(f"{self.request.run}\n{number}".encode()).hexdigest(),
            mu=mu,
            make=lambda: {**make(), _NAME: digest},
            prepare=prepare,
            run=self.request.run,
            round=self.request.round,
            limit=limit,
            asked=Guarantee(self.privacy.epsilon, self.privacy.delta, simulated),
            simulated=simulated,
        )
        if not torch.equal(stored[_NAME], digest):
            what = f"the server asks for another release than the one this client made as number {number} of the run"
            raise Refused(f"{what}; a changed configuration needs a new run", code="FEDAF-PRIVACY-CHANGED")
        return {key: tensor for key, tensor in stored.items() if key != _NAME}


def vaults(
    method: Method, ledger: Callable[[str], Ledger], policy: Policy | None
) -> Callable[[str, Request], SiteVault] | None:
    """Return what makes the vault of a client for a request; ``None`` in runs without differential privacy.

    Args:
        method: The method of the run.
        ledger: Returns the ledger of a client.
        policy: The clients' policy, if they have one.
    """
    if method.privacy is None:
        return None
    return lambda client, request: SiteVault(ledger(client), request, method.privacy, policy)
