"""A client's policy: what a server may ask of it.

Servers are not trusted. Without a policy, a server could ask for images after too few condensation steps, and would
receive near-copies of private images.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from fedaf.common.options import Options
from fedaf.errors import Refused
from fedaf.protocol.payload import Payload
from fedaf.protocol.reports import Disclosure, Guarantee

#: The scalar of a reply with the highest PSNR of its images to private images.
LIKENESS = "audit_psnr_max"


_ROUNDING = 1e-9  # 0.29 images per sample of 100 samples are 29 images, despite rounding errors


@dataclass(frozen=True)
class Forecast:
    """What a whole run discloses under a policy.

    Args:
        images: Condensed images by class that the client sends.
        per_sample: The largest number of these images of a class divided by the samples of that class.
        left_out: Classes with too few samples for the limit of one round, of which no images are sent.
        limited_from: The first round in which a total limit withholds images; ``None`` if it never does.
        silent_from: The first round in which the client sends no images; ``None`` if it always does.
    """

    images: Mapping[int, int]
    per_sample: float
    left_out: list[int]
    limited_from: int | None
    silent_from: int | None


class Policy(Options):
    """The limits that a data owner sets, with careful defaults."""

    methods: list[str] = Field(description="methods this client takes part in; others are refused")
    min_samples: int = Field(
        10,
        ge=1,
        description="least number of samples that sent data come from: of a class, or in all if a model is sent",
    )
    max_images_per_sample: float = Field(
        0.5,
        gt=0,
        description="most condensed images of a class per sample of that class (IPC / N_kc), in one round; "
        "of a class with fewer samples no images are sent",
    )
    max_total_images_per_sample: float = Field(
        20.0,
        gt=0,
        description="most condensed images of a class per sample of that class, over all rounds and runs; "
        "beyond it no new images of the class are sent",
    )
    min_local_steps: int = Field(10, ge=0, description="least number of condensation steps before images are sent")
    initialisations: list[Literal["mean", "new means", "clusters", "noise", "real"]] = Field(
        ["mean", "clusters", "noise"],
        description="initialisations of condensed images that are allowed; 'new means' are means of random images in "
        "every round, from which private images can be recovered; 'real' sends near-copies",
    )
    max_images: int | None = Field(
        None,
        ge=0,
        description="most condensed images sent in total, over all rounds and runs; "
        "no images are sent in a round that would exceed it; unset: no limit",
    )
    max_likeness: float = Field(
        40.0, gt=0, description="highest PSNR in dB of a condensed image to a private image; an exact copy has 59"
    )
    require_privacy: bool = Field(False, description="whether runs without differential privacy are refused")
    max_epsilon: float | None = Field(
        None,
        gt=0,
        description="highest epsilon of all releases together, over all runs; runs without differential privacy are "
        "then refused; unset: no limit",
    )
    max_delta: float = Field(1e-5, gt=0, lt=1, description="highest delta of a run with differential privacy")
    allow_publication: bool = Field(
        False,
        description="whether the server may pass this client's condensed images on, as fedaf export --condensed does; "
        "the answer goes with every reply",
    )

    def admit(self, method: str, disclosure: Disclosure | None) -> None:
        """Check a round of a method before any work is done. ``allowance`` has the limits on numbers of images.

        Args:
            method: Name of the method.
            disclosure: What the round would reveal; ``None`` if the method does not say.

        Raises:
            Refused: The round would reveal more than the policy allows.
        """
        if method not in self.methods:
            raise self.refused_method(method)
        private = disclosure.privacy if disclosure is not None else None
        self._admit_privacy(private)
        if disclosure is None:  # a custom method that does not say, but is trusted by name
            return
        fewest, images, steps = disclosure.fewest_samples, disclosure.images, disclosure.local_steps
        start, allowed = disclosure.initialisation, ", ".join(self.initialisations)
        if private is None and 0 < fewest < self.min_samples:  # a refusal would tell the exact number of samples
            code = "FEDAF-POLICY-SAMPLES"
            problem = f"a part of the reply describes {fewest} samples, the policy wants min_samples {self.min_samples}"
        elif images and steps < self.min_local_steps:
            code = "FEDAF-POLICY-STEPS"
            problem = (
                f"{steps} steps of condensation are asked for, the policy wants min_local_steps {self.min_local_steps}"
            )
        elif images and start not in self.initialisations:
            code = "FEDAF-POLICY-INITIALISATION"
            problem = f"images would start from {start!r}, the policy allows initialisations {allowed or 'none'}"
            if start == "new means":
                problem += "; set method.init = 'clusters' or method.continue_images = true"
        else:
            return
        raise Refused(problem, code=code)

    def _admit_privacy(self, asked: Guarantee | None) -> None:
        """Check a run's guarantee of differential privacy. The ledger checks what all runs spend together."""
        if asked is None:
            if not self.require_privacy and self.max_epsilon is None:
                return
            code = "FEDAF-POLICY-PRIVACY"
            key = "require_privacy" if self.require_privacy else f"max_epsilon {self.max_epsilon:g}"
            problem = f"the run has no differential privacy, which {key} of the policy requires; set privacy.epsilon"
        elif asked.simulated and (self.require_privacy or self.max_epsilon is not None):  # the server knows the seed
            code = "FEDAF-POLICY-SIMULATED"
            key = "require_privacy" if self.require_privacy else f"max_epsilon {self.max_epsilon:g}"
            problem = (
                f"the noise comes from privacy.simulate_seed, which is not private as {key} of the policy requires"
            )
            problem += "; leave it out"
        elif asked.delta > self.max_delta:
            code = "FEDAF-POLICY-DELTA"
            problem = f"the run has delta {asked.delta:g}, over max_delta {self.max_delta:g}; lower privacy.delta"
        elif self.max_epsilon is not None and asked.epsilon > self.max_epsilon:
            code = "FEDAF-POLICY-EPSILON"
            problem = (
                f"the run has epsilon {asked.epsilon:g}, over max_epsilon {self.max_epsilon:g}; lower privacy.epsilon"
            )
        else:
            return
        raise Refused(problem, code=code)

    def allowance(self, images: Mapping[int, int], counts: Sequence[int], sent: Mapping[int, int]) -> dict[int, int]:
        """Return those images of a round that the limits of one round, and of all rounds and runs, permit.

        A class is permitted completely or not at all. ``max_images`` permits or refuses all of the round's images.

        Args:
            images: Condensed images that the round asks for, by class.
            counts: The client's samples per class.
            sent: Condensed images that the client has sent so far, by class.

        Returns:
            The permitted images by class.
        """
        withheld = self.withheld(images, counts, sent)
        return {label: number for label, number in images.items() if label not in withheld}

    def withheld(self, images: Mapping[int, int], counts: Sequence[int], sent: Mapping[int, int]) -> dict[int, str]:
        """Return the classes of which the limits permit no images in a round, each with the name of the limit.

        The arguments are those of ``allowance``.
        """
        so_far, most = Counter(sent), self.max_total_images_per_sample
        withheld = dict.fromkeys(self.left_out(images, counts), "max_images_per_sample")
        for label, number in images.items():
            if label not in withheld and so_far[label] + number > most * counts[label] + _ROUNDING:
                withheld[label] = "max_total_images_per_sample"
        rest = {label: number for label, number in images.items() if label not in withheld}
        if self.max_images is not None and so_far.total() + sum(rest.values()) > self.max_images:
            withheld |= dict.fromkeys(rest, "max_images")
        return withheld

    def left_out(self, images: Mapping[int, int], counts: Sequence[int]) -> list[int]:
        """Return the classes that have too few samples for these images in one round.

        Args:
            images: Condensed images that the round asks for, by class.
            counts: The client's samples per class.
        """
        most = self.max_images_per_sample
        return [label for label, number in images.items() if number > most * counts[label] + _ROUNDING]

    def forecast(self, images: Mapping[int, int], counts: Sequence[int], rounds: int) -> Forecast:
        """Return what a run discloses if every round asks for the same images and nothing was sent before.

        Args:
            images: Condensed images that a round asks for, by class.
            counts: The client's samples per class.
            rounds: Number of rounds.
        """
        sent: Counter[int] = Counter()
        left_out, limited_from, silent_from = self.left_out(images, counts), None, None
        for round in range(1, rounds + 1):
            permitted = self.allowance(images, counts, sent)
            if len(permitted) < len(images) - len(left_out):
                limited_from = limited_from or round
            if images and not permitted:
                silent_from = round
                break  # what is permitted never grows
            sent += Counter(permitted)
        return Forecast(dict(sent), images_per_sample(sent, counts), left_out, limited_from, silent_from)

    def refused_method(self, method: str) -> Refused:
        """Return the refusal of a method that is not in ``methods``."""
        admitted = ", ".join(self.methods) or "none"
        return Refused(f"the policy admits the methods {admitted}, not {method[:80]}", code="FEDAF-POLICY-METHOD")

    def release(self, reply: Payload, images: Mapping[int, int], allowance: Mapping[int, int] | None) -> None:
        """Check a reply before it is sent.

        Args:
            reply: The reply.
            images: Its condensed images by class.
            allowance: The images that are permitted in this round, by class; ``None`` means no limit.

        Raises:
            Refused: There are more images than permitted, or one is too similar to a private one.
        """
        if allowance is not None and (excess := Counter(images) - Counter(allowance)):
            label, number = min(excess.items())
            problem = f"the reply has {number} images of class {label} more than the policy still allows"
            raise Refused(problem, code="FEDAF-POLICY-TOTAL")
        likeness = reply.scalars.get(LIKENESS)
        if isinstance(likeness, float) and likeness > self.max_likeness:
            raise Refused(
                f"an image has a PSNR of {likeness:.1f} dB to a private one, over max_likeness {self.max_likeness:g}",
                code="FEDAF-POLICY-LIKENESS",
            )


def images_per_sample(images: Mapping[int, int], counts: Sequence[int]) -> float:
    """Return the largest number of images of a class divided by the samples of that class; 0 without images.

    Args:
        images: Number of images by class. Classes of which there are no samples are left out.
        counts: Samples per class.
    """
    return max((images.get(label, 0) / count for label, count in enumerate(counts) if count), default=0.0)


def nearest_power_of_two(samples: int) -> int:
    """Round a number of samples, at least 1. The exact number would help a server to recover them."""
    return 1 << round(math.log2(samples))


def rounded_up(value: float) -> float:
    """Return the smallest number of the series 1, 2, 5, 10, 20, 50 ... (and 0.5, 0.2, 0.1 ...) that is not below.

    Clients report ratios to their samples in this form, because the exact ratio would tell the number of samples.

    Args:
        value: A number of at least 0, which stays 0.
    """
    if value == 0:
        return 0.0
    power = math.floor(math.log10(value))
    return next(step for step in (float(f"{digit}e{power}") for digit in (1, 2, 5, 10)) if step >= value)
