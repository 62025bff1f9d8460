"""A client's own policy: what a server may ask of it. A server is as little trusted as a client.

Without one a server could ask for condensed images that were hardly condensed at all, and would get photographs.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fedaf.common.options import Options
from fedaf.errors import Refused
from fedaf.protocol.contract import Disclosure
from fedaf.protocol.payload import Payload

#: The scalar of a reply that tells the likeness of its images to private ones.
LIKENESS = "audit_psnr_max"


class Policy(Options):
    """The bounds, with defaults that a careful data owner could start from."""

    methods: list[str] = Field(description="methods this client takes part in; others are refused")
    min_samples: int = Field(
        10, ge=1, description="fewest samples behind whatever is sent: of a class, or of all where a model is sent"
    )
    max_images_per_sample: float = Field(
        0.5, gt=0, description="condensed images of a class over the samples they are made from (IPC / N_kc)"
    )
    min_local_steps: int = Field(10, ge=0, description="fewest condensation steps before images are sent")
    initialisations: list[Literal["mean", "noise", "real"]] = Field(
        ["mean", "noise"], description="what condensed images may start from; 'real' sends near-copies"
    )
    max_images: int | None = Field(
        None, ge=0, description="condensed images sent in total, over all rounds and runs; unset: no bound"
    )
    max_likeness: float = Field(
        40.0, gt=0, description="highest PSNR in dB of a condensed image to a private one; exact copies have 59"
    )

    def admit(self, method: str, disclosure: Disclosure | None, counts: Sequence[int], *, sent: int) -> None:
        """Raise ``Refused`` where a round of ``method`` takes more than this client gives. ``counts`` are its samples
        by class, ``sent`` the condensed images it has sent so far."""
        if method not in self.methods:
            raise Refused(f"the policy admits the methods {', '.join(self.methods) or 'none'}, not {method[:80]}")
        if disclosure is None:  # a method of one's own that does not tell, but is trusted by name
            return
        if 0 < disclosure.fewest_samples < self.min_samples:
            raise Refused(
                f"something would be sent of {disclosure.fewest_samples} samples, the policy wants min_samples "
                f"{self.min_samples}"
            )
        images = disclosure.images
        for label, number in images.items():
            if number > self.max_images_per_sample * counts[label]:
                raise Refused(
                    f"{number} images of the {counts[label]} samples of class {label} are asked for, the policy allows "
                    f"max_images_per_sample {self.max_images_per_sample:g}"
                )
        if images and disclosure.local_steps < self.min_local_steps:
            raise Refused(
                f"{disclosure.local_steps} condensation steps are asked for, the policy wants min_local_steps "
                f"{self.min_local_steps}"
            )
        if images and disclosure.initialisation not in self.initialisations:
            raise Refused(
                f"images would start from {disclosure.initialisation!r}, the policy allows initialisations "
                f"{', '.join(self.initialisations) or 'none'}"
            )
        asked = sum(images.values())
        if self.max_images is not None and sent + asked > self.max_images:
            raise Refused(
                f"{asked} images are asked for and {sent} were sent before, the policy allows max_images "
                f"{self.max_images} in total"
            )

    def release(self, reply: Payload) -> None:
        """Raise ``Refused`` where a reply shows more than this client gives."""
        likeness = reply.scalars.get(LIKENESS)
        if isinstance(likeness, float) and likeness > self.max_likeness:
            raise Refused(
                f"an image came out within {likeness:.1f} dB of a private one, the policy allows max_likeness "
                f"{self.max_likeness:g}"
            )
