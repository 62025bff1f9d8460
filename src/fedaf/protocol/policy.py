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
        fewest, images, steps = disclosure.fewest_samples, disclosure.images, disclosure.local_steps
        asked, start, allowed = sum(images.values()), disclosure.initialisation, ", ".join(self.initialisations)
        crowded = [label for label, number in images.items() if number > self.max_images_per_sample * counts[label]]
        if 0 < fewest < self.min_samples:
            code = "FEDAF-POLICY-SAMPLES"
            problem = f"a part of the reply describes {fewest} samples, the policy wants min_samples {self.min_samples}"
        elif crowded:
            code, limit = "FEDAF-POLICY-IMAGES", f"max_images_per_sample {self.max_images_per_sample:g}"
            request = f"{images[crowded[0]]} images of the {counts[crowded[0]]} samples of class {crowded[0]}"
            problem = f"{request} are asked for, the policy allows {limit}"
        elif images and steps < self.min_local_steps:
            code = "FEDAF-POLICY-STEPS"
            problem = (
                f"{steps} steps of condensation are asked for, the policy wants min_local_steps {self.min_local_steps}"
            )
        elif images and start not in self.initialisations:
            code = "FEDAF-POLICY-INITIALISATION"
            problem = f"images would start from {start!r}, the policy allows initialisations {allowed or 'none'}"
        elif self.max_images is not None and sent + asked > self.max_images:
            code = "FEDAF-POLICY-TOTAL"
            problem = (
                f"{asked} images are asked for after {sent} before, the policy allows max_images {self.max_images}"
            )
        else:
            return
        raise Refused(problem, code=code)

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
                f"an image has a PSNR of {likeness:.1f} dB to a private one, over max_likeness {self.max_likeness:g}",
                code="FEDAF-POLICY-LIKENESS",
            )
