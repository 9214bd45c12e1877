"""What differs from device to device."""

import torch


def current_device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def clear_device_cache():
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
