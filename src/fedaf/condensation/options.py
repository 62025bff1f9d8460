"""Options of every method that condenses, with the paper's values as defaults."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedaf.common.options import Flag, Options

FEWEST_IN_A_MEAN = 5  # a mean of fewer shows them


class CondensationOptions(Options):
    ipc: Annotated[int, Flag("Method", default="by preset")] = Field(
        50, ge=1, description="condensed images per class (IPC)"
    )
    min_samples: int | None = Field(
        None, ge=1, description="fewest samples of a class a client condenses; ipc if unset"
    )
    local_steps: Annotated[int, Flag("Method", default="by preset")] = Field(
        1000, ge=0, description="condensation steps per round; 0 uploads the initial images"
    )
    real_batch: int = Field(256, ge=1, description="real images per class and step, drawn with replacement")
    image_lr: float = Field(1.0, gt=0, description="learning rate of the condensed images")
    image_momentum: float = Field(0.9, ge=0, lt=1, description="momentum of the condensed images")
    image_clip: float | None = Field(None, gt=0, description="clip each client's image gradient to this norm")
    init: Literal["mean", "noise", "real"] = Field("mean", description="what condensed images start from")
    init_mean_of: int = Field(
        10, ge=FEWEST_IN_A_MEAN, description="how many random images a mean is taken of; at most half of a small class"
    )
    allow_real_init: bool = Field(False, description="permit init = 'real', which uploads near-copies of private data")
    continue_images: bool = Field(True, description="go on from the client's images of its last round")
    shared_resampling: bool = Field(
        True, description="all clients share the random network of a step; false: each draws its own"
    )
    bn_mode: Literal["eval", "batch"] = Field("eval", description="BatchNorm while condensing: running or batch stats")
    server_epochs: int = Field(500, ge=1, description="epochs of server training on the condensed data")
    server_batch: int = Field(256, ge=2, description="batch size of server training")
    server_lr: float = Field(0.001, gt=0, description="learning rate of server training")
    server_momentum: float = Field(0.9, ge=0, lt=1, description="momentum of server training")
    max_staleness: int = Field(5, ge=0, description="rounds the last images of a client that is away stay in use")

    @model_validator(mode="after")
    def _real_init_is_deliberate(self) -> "CondensationOptions":
        if self.init == "real" and not self.allow_real_init:
            raise ValueError(
                "init = 'real' uploads images that stay close to private photographs; "
                "set allow_real_init = true to do it all the same, or use 'mean' or 'noise'"
            )
        return self

    @property
    def threshold(self) -> int:
        """A client condenses a class from this many samples on; a mean is never taken of fewer than it names."""
        return getattr(self, self.binding)  # type: ignore[no-any-return]

    @property
    def binding(self) -> str:
        """The option that sets the threshold."""
        wanted = "ipc" if self.min_samples is None else "min_samples"
        by_mean = self.init == "mean" and self.init_mean_of > getattr(self, wanted)
        return "init_mean_of" if by_mean else wanted
