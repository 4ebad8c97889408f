"""What is in a folder that others may remove at any moment."""

from pathlib import Path


def listed(folder: Path, suffix: str = "") -> list[Path]:
    """The entries whose names end in `suffix`, sorted; none if there is no such folder, or no longer."""
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(suffix))
    except (FileNotFoundError, NotADirectoryError):
        return []
