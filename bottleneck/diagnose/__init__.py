"""From what lies on disk to a diagnosis: run folder -> facts -> findings -> fixes -> diagnosis."""

from .compose import diagnose_paths

__all__ = ["diagnose_paths"]
