"""Options of all condensing methods. The defaults are the paper's values."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedaf.common.batches import batch_sizes
from fedaf.common.options import Flag, Options

FEWEST_IN_A_MEAN = 5  # a mean of fewer images would reveal them
_IntFlag = Annotated[int, Flag("Method", default="by preset")]


class CondensationOptions(Options):
    """The part of the ``[method]`` table that all condensing methods share."""

    ipc: _IntFlag = Field(50, ge=1, description="condensed images per class (IPC)")
    min_samples: int | None = Field(
        None,
        ge=1,
        description="condense a class only if the client has at least this many samples of it, and at least "
        "init_mean_of if init is mean or clusters; unset: ipc",
    )
    local_steps: _IntFlag = Field(1000, ge=0, description="condensation steps per round; 0 uploads the initial images")
    real_batch: int = Field(256, ge=1, description="real images per class in each step, drawn with replacement")
    image_lr: float = Field(1.0, gt=0, description="learning rate of the condensed images")
    image_lr_decay: bool = Field(
        False, description="let the learning rate of the images fall to 0 over the steps of a round, as a cosine"
    )
    image_momentum: float = Field(0.9, ge=0, lt=1, description="momentum of the condensed images")
    image_clip: float | None = Field(
        None, gt=0, description="clip each client's image gradient to this norm; unset: off"
    )
    clamp_images: bool = Field(
        False, description="keep condensed pixels in the range that can be sent, at every step and not only at the end"
    )
    match_spread: float = Field(0.0, ge=0, description="weight of matching the standard deviations of features; 0: off")
    match_distribution: float = Field(
        0.0, ge=0, description="weight of matching the characteristic functions of features; 0: off"
    )
    init: Literal["mean", "clusters", "noise", "real"] = Field(
        "mean",
        description="initialisation of condensed images: means of random images, means of fixed clusters of similar "
        "images, noise, or single images",
    )
    init_mean_of: int = Field(
        10,
        ge=FEWEST_IN_A_MEAN,
        description="images per mean; for means of a small class, half of the class; for clusters, the smallest size",
    )
    match_clusters: bool = Field(
        False,
        description="if every round starts from new means of clusters: match only the samples of these clusters, "
        "instead of the whole class",
    )
    allow_real_init: bool = Field(False, description="allow init = 'real', which uploads near-copies of private data")
    continue_images: bool = Field(
        True, description="start from the client's images of its last round; false: from new ones"
    )
    shared_resampling: bool = Field(
        True, description="in each step all clients use the same random network; false: each client draws its own"
    )
    bn_mode: Literal["eval", "batch"] = Field(
        "eval", description="BatchNorm while condensing: running (eval) or batch statistics"
    )
    replay: int = Field(
        1, ge=1, description="how many uploads of a class the server keeps of each client and trains on; 1: the latest"
    )
    server_epochs: int = Field(500, ge=1, description="epochs of server training on the condensed data")
    server_steps: int = Field(
        0, ge=0, description="steps of server training, rounded up to whole epochs; 0: server_epochs"
    )
    server_batch: int = Field(256, ge=2, description="batch size of server training")
    server_lr: float = Field(0.001, gt=0, description="learning rate of server training")
    server_momentum: float = Field(0.9, ge=0, lt=1, description="momentum of server training")
    server_average: float = Field(
        0.0,
        ge=0,
        le=1,
        description="average the weights over about this share of the server's last steps (an exponential moving "
        "average), and estimate BatchNorm statistics for the average; 0: keep the last weights",
    )
    server_cutmix: float = Field(0.0, ge=0, le=1, description="share of the server's images that CutMix changes")
    server_weighting: float = Field(
        0.0,
        ge=0,
        le=1,
        description="draw the images of a client's class in proportion to this power of its number of samples, which "
        "the client then sends, rounded to a power of two; 0: draw all images alike, and send no number",
    )
    max_staleness: int = Field(5, ge=0, description="rounds in which an absent client's last images are still used")

    @model_validator(mode="after")
    def _real_init_is_deliberate(self) -> "CondensationOptions":
        if self.init == "real" and not self.allow_real_init:
            raise ValueError(
                "init = 'real' uploads near-copies of private images; "
                "use 'clusters', 'mean' or 'noise', or set allow_real_init = true if that is intended"
            )
        return self

    @property
    def starts_from(self) -> str:
        """What condensed images start from, as a policy calls it (``Disclosure.initialisation``)."""
        return "new means" if self.init == "mean" and not self.continue_images else self.init

    @property
    def matches_clusters(self) -> bool:
        """Whether images match the clusters that they start from, and not their whole class."""
        return self.match_clusters and self.init == "clusters" and not self.continue_images

    def epochs(self, images: int) -> int:
        """Return the epochs of server training on this number of images."""
        return math.ceil(self.server_steps / self._batches(images)) if self.server_steps else self.server_epochs

    def ema(self, images: int) -> float | None:
        """Return the decay of the average of the server's weights, or ``None`` without an average."""
        horizon = self.server_average * self.epochs(images) * self._batches(images)
        return 1 - 1 / max(1, horizon) if self.server_average else None

    def _batches(self, images: int) -> int:
        """Return the number of batches of an epoch, at least 1."""
        return max(1, len(batch_sizes(images, self.server_batch)))

    @property
    def threshold(self) -> int:
        """The fewest samples of a class that a client condenses."""
        return getattr(self, self.binding)  # type: ignore[no-any-return]

    @property
    def binding(self) -> str:
        """The name of the option that sets the threshold: means and clusters need ``init_mean_of`` samples."""
        by_mean = self.init in ("mean", "clusters") and self.init_mean_of > getattr(self, self._wanted)
        return "init_mean_of" if by_mean else self._wanted

    @property
    def _wanted(self) -> str:
        """The name of the option that sets the threshold for images that start from noise or single images."""
        return "ipc" if self.min_samples is None else "min_samples"

    def too_few_for(self, samples: int) -> str | None:
        """Return the name of the option for which a class has too few samples; ``None`` if it is condensed."""
        for name in (self._wanted, self.binding):
            if samples < getattr(self, name):
                return name
        return None
