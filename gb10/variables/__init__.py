"""`vars.yaml`: read strictly, judged in words. Called by render.py, the command line and everything that needs a site's values."""

from gb10.variables.load import Loaded, load
from gb10.variables.model import Variables

__all__ = ["Loaded", "Variables", "load"]
