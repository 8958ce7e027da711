"""Settings for all tests."""

import torch

# Tiny tensor operations on two threads are many times slower on a busy machine.
torch.set_num_threads(1)
