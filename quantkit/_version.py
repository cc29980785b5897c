"""The version of quantkit that runs: that of the installed package."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """Return the installed version, or what to call a source folder that is run without installing it."""
    try:
        return version("quantkit")
    except PackageNotFoundError:
        return "unknown (run from a source folder)"
