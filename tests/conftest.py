"""One thread: the tests' tensors are small, and numbers must not depend on how many cores a machine has."""

import torch

torch.set_num_threads(1)
