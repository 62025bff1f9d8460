"""Runs with differential privacy: the values that their methods need, and what is refused."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedaf.common.options import Options
from fedaf.config.toml import toml_value
from fedaf.errors import UserError
from fedaf.privacy.options import PrivacyOptions

if TYPE_CHECKING:
    from fedaf.protocol import Method

_OFF = PrivacyOptions()
_METHODS = "fedaf, fedaf-plus or feddm"


def private_values(privacy: PrivacyOptions, name: str, method: "type[Method]") -> Mapping[str, Mapping[str, Any]]:
    """Return the settings that come with differential privacy, over those of the preset; none if it is off.

    Args:
        privacy: The ``[privacy]`` table.
        name: Name of the method.
        method: Its class.

    Raises:
        UserError: The method does not keep the guarantee, or a setting has no effect without epsilon.
    """
    if privacy.epsilon is None:
        if set_without := [key for key in PrivacyOptions.model_fields if getattr(privacy, key) != getattr(_OFF, key)]:
            what = (
                f"privacy.{set_without[0]} is set, but privacy.epsilon is not, so the run has no differential privacy"
            )
            raise UserError(f"{what}; set privacy.epsilon too, or leave it out.", code="FEDAF-PRIVACY-OFF")
        return {}
    if not method.__dict__.get("keeps_privacy"):  # a class that derives from one that does may send anything
        what = f"privacy.epsilon is set, but {name} sends what no release of fedaf covers, such as trained models"
        raise UserError(f"{what}; use {_METHODS}, or leave privacy.epsilon out.", code="FEDAF-PRIVACY-METHOD")
    return {
        "run": {"rounds": privacy.releases},
        "method": {**method.private_defaults, **method.private_options(privacy)},
    }


def check_private(privacy: PrivacyOptions, options: Options, method: "type[Method]") -> None:
    """Check that no option of the method needs the private data after the release.

    Raises:
        UserError: An option does; the message names the value that it must have.
    """
    if privacy.epsilon is None:
        return
    if privacy.knowledge_share and not method.sends_knowledge:
        what = f"privacy.knowledge_share is {privacy.knowledge_share:g}, but this method sends no mean logits"
        raise UserError(f"{what}; set it to 0, or use fedaf or fedaf-plus.", code="FEDAF-PRIVACY-OPTION")
    for key, needed in method.private_options(privacy).items():
        given = getattr(options, key)
        if given != needed:
            what = f"method.{key} is {toml_value(given)}, which needs the private images again after a release"
            advice = f"with privacy.epsilon it must be {toml_value(needed)}"
            if key in ("cdc", "lgkm"):
                advice += ", unless privacy.knowledge_share pays for the mean logits"
            raise UserError(f"{what}; {advice}.", code="FEDAF-PRIVACY-OPTION")
