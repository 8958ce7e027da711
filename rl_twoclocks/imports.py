"""Importing what users name."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType


def import_module(name: str) -> ModuleType:
    """Import a module, also from the working directory.

    Raises:
        ImportError: there is none, or it raises one itself.
    """
    # As for `python -m`: a console script's path does not have the working directory.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(name)
