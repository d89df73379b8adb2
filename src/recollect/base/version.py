"""The version of Recollect that runs: what `recollect.__version__` and the manifests say."""


def installed_version() -> str:
    """The version in the metadata that an installation wrote."""
    from importlib import metadata  # slow to import, and few ask for it

    try:
        return metadata.version("recollect")
    except metadata.PackageNotFoundError:  # imported from a folder that was never installed
        return "0+unknown"
