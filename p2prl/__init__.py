"""p2prl: volunteer computing for reinforcement learning on a LAN."""

__version__ = "0.1.0"

__all__ = ["__version__"]
