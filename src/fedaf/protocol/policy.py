"""A client's policy: what a server may ask of it.

Servers are not trusted. Without a policy, a server could ask for images after too few condensation steps, and would
receive near-copies of private images.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fedaf.common.options import Options
from fedaf.errors import Refused
from fedaf.protocol.contract import Disclosure
from fedaf.protocol.payload import Payload

#: The scalar of a reply with the highest PSNR of its images to private images.
LIKENESS = "audit_psnr_max"


class Policy(Options):
    """The limits that a data owner sets, with careful defaults."""

    methods: list[str] = Field(description="methods this client takes part in; others are refused")
    min_samples: int = Field(
        10,
        ge=1,
        description="least number of samples that sent data come from: of a class, or in all if a model is sent",
    )
    max_images_per_sample: float = Field(
        0.5, gt=0, description="most condensed images of a class per sample of that class (IPC / N_kc)"
    )
    min_local_steps: int = Field(10, ge=0, description="least number of condensation steps before images are sent")
    initialisations: list[Literal["mean", "noise", "real"]] = Field(
        ["mean", "noise"], description="initialisations of condensed images that are allowed; 'real' sends near-copies"
    )
    max_images: int | None = Field(
        None, ge=0, description="most condensed images sent in total, over all rounds and runs; unset: no limit"
    )
    max_likeness: float = Field(
        40.0, gt=0, description="highest PSNR in dB of a condensed image to a private image; an exact copy has 59"
    )

    def admit(self, method: str, disclosure: Disclosure | None, counts: Sequence[int], *, sent: int) -> None:
        """Check a round of a method before any work is done.

        Args:
            method: Name of the method.
            disclosure: What the round would reveal; ``None`` if the method does not say.
            counts: The client's samples per class.
            sent: How many condensed images the client has sent so far.

        Raises:
            Refused: The round would reveal more than the policy allows.
        """
        if method not in self.methods:
            raise self.refused_method(method)
        if disclosure is None:  # a custom method that does not say, but is trusted by name
            return
        if 0 < disclosure.fewest_samples < self.min_samples:
            raise Refused(
                f"a part of the reply describes {disclosure.fewest_samples} samples, the policy wants min_samples "
                f"{self.min_samples}",
                code="FEDAF-POLICY-SAMPLES",
            )
        images = disclosure.images
        for label, number in images.items():
            if number > self.max_images_per_sample * counts[label]:
                raise Refused(
                    f"{number} images of the {counts[label]} samples of class {label} are asked for, the policy allows "
                    f"max_images_per_sample {self.max_images_per_sample:g}",
                    code="FEDAF-POLICY-IMAGES",
                )
        if images and disclosure.local_steps < self.min_local_steps:
            raise Refused(
                f"{disclosure.local_steps} condensation steps are asked for, the policy wants min_local_steps "
                f"{self.min_local_steps}",
                code="FEDAF-POLICY-STEPS",
            )
        if images and disclosure.initialisation not in self.initialisations:
            raise Refused(
                f"images would start from {disclosure.initialisation!r}, the policy allows initialisations "
                f"{', '.join(self.initialisations) or 'none'}",
                code="FEDAF-POLICY-INITIALISATION",
            )
        asked = sum(images.values())
        if self.max_images is not None and sent + asked > self.max_images:
            raise Refused(
                f"{asked} images are asked for and {sent} were sent before, the policy allows max_images "
                f"{self.max_images} in total",
                code="FEDAF-POLICY-TOTAL",
            )

    def refused_method(self, method: str) -> Refused:
        """Return the refusal of a method that is not in ``methods``."""
        admitted = ", ".join(self.methods) or "none"
        return Refused(f"the policy admits the methods {admitted}, not {method[:80]}", code="FEDAF-POLICY-METHOD")

    def release(self, reply: Payload) -> None:
        """Check a reply before it is sent.

        Raises:
            Refused: A condensed image is too similar to a private one.
        """
        likeness = reply.scalars.get(LIKENESS)
        if isinstance(likeness, float) and likeness > self.max_likeness:
            raise Refused(
                f"an image came out within {likeness:.1f} dB of a private one, the policy allows max_likeness "
                f"{self.max_likeness:g}",
                code="FEDAF-POLICY-LIKENESS",
            )
