"""Policy files: what a client lets a server ask of it."""

from pathlib import Path
from typing import Any

from fedaf.common.naming import nearest
from fedaf.config.toml import read_toml, toml_value, validate
from fedaf.errors import UserError
from fedaf.methods.registry import FEDERATED, METHODS
from fedaf.protocol import Policy

DEFAULT_POLICY = "default"


def default_policy(**bounds: Any) -> Policy:
    """Return the default policy, with some bounds replaced.

    It admits the federated methods that ship with fedaf. Any other method must be named explicitly: an installed
    plugin, ``module:Class``, or a reference such as ``pooled``.
    """
    return Policy(**{"methods": list(FEDERATED), **bounds})


def read_policy(name: str) -> Policy:
    """Return a client's policy.

    Args:
        name: A TOML file, or ``default``. Bounds that the file leaves out have their defaults.

    Raises:
        UserError: If the file cannot be read, or has an unknown key, a wrong value or an unknown method.
    """
    if name == DEFAULT_POLICY:
        return default_policy()
    bounds = {"methods": list(FEDERATED), **read_toml(Path(name), what="policy")}
    policy = validate(Policy, bounds, owner="a policy")
    for method in policy.methods:
        if not METHODS.knows(method):
            unknown = f"the policy {name} admits an unknown method {method!r}{nearest(method, METHODS)}"
            raise UserError(f"{unknown}; expected some of {METHODS.choices}.", code="FEDAF-POLICY-FILE-METHOD")
    return policy


def policy_toml(policy: Policy) -> str:
    """Return a policy as a TOML file with a comment for each bound."""
    lines = []
    for name, field in type(policy).model_fields.items():
        value = getattr(policy, name)
        lines += [f"# {field.description}", f"# {name} =" if value is None else f"{name} = {toml_value(value)}", ""]
    return "\n".join(lines)
