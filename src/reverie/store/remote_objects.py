"""A store behind a URL: S3, Google Cloud, Azure, memory, or any other file system that fsspec supports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from reverie.core.errors import ConfigError, RunError, did_you_mean
from reverie.core.files import LARGEST_FILE
from reverie.store.objects import ObjectStore
from reverie.store.retry import for_each, short_error

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
"""Extra of reverie (``pip install 'reverie-rl[s3]'``) that each kind of URL needs."""
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run `aws configure`",
    "gcs": "set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`",
    "azure": "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
OPTIONS: dict[str, dict[str, Any]] = {
    # A missing response must eventually become an error; the caller retries (``retry.py``).
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 1}}}
}


class RemoteObjects(ObjectStore):
    """Objects in cloud storage. Each is written by one request, which is all or nothing."""

    def __init__(self, url: str) -> None:
        """Prepare the file system of ``url``; no request is sent yet."""
        self.location: str = url.rstrip("/")
        self.threads: int = 8
        self.exceptions: tuple[type[Exception], ...] = (Exception,)
        self.kind: str = url.partition("://")[0]
        self.fs: Any
        self.fs, path = file_system(url, self.kind)
        if hasattr(self.fs, "retries"):
            self.fs.retries = 1
        self.root: str = path.rstrip("/")

    def get(self, name: str, limit: int = LARGEST_FILE) -> bytes:
        data = bytes(self.fs.cat_file(self._path(name), start=0, end=limit + 1))
        if len(data) > limit:
            raise RunError(f"{self.location}/{name} has more than {limit:,} bytes.")
        return data

    def stage(self, name: str, *parts: bytes | memoryview) -> None:
        self.fs.pipe_file(self._path(name), parts[0] if len(parts) == 1 else b"".join(parts))

    def keeps(self, name: str) -> bool:
        if any(part.startswith("memory:") for part in self.location.split("::")):  # shared by all file systems
            return False
        with contextlib.suppress(FileNotFoundError):
            return bool(file_system(self.location, self.kind)[0].cat_file(self._path(name)))
        return False

    def publish(self) -> None:
        """Do nothing: an object is durable once its request has returned."""

    def delete(self, names: Iterable[str]) -> None:

        def remove(name: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(self._path(name))

        for_each(remove, names, self.threads)

    def sizes(self, prefix: str = "") -> dict[str, int | None]:
        self.fs.invalidate_cache()
        infos = self.fs.find(self._path(prefix).rstrip("/"), detail=True)
        return {path[len(self.root) + 1 :]: info.get("size") for path, info in sorted(infos.items())}

    def children(self) -> list[str]:
        self.fs.invalidate_cache()
        try:
            paths = self.fs.ls(self.root, detail=False)
        except FileNotFoundError:
            return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

    def error(self, error: Exception) -> RunError:
        return RunError(f"the store {self.location} cannot be used: {short_error(error)}. {self._advice(error)}")

    def _advice(self, error: Exception) -> str:
        extra = EXTRAS.get(self.kind, "")
        refused = isinstance(error, PermissionError) or "credential" in f"{type(error).__name__} {error}".lower()
        if refused and extra:
            return f"Credentials are missing or not accepted: {CREDENTIALS[extra]}."
        if isinstance(error, FileNotFoundError):
            return f"Create the bucket {self.root.strip('/').partition('/')[0]} first, or check its name."
        return "Check the address and the network, or choose a local folder."

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"


def file_system(url: str, kind: str) -> tuple[Any, str]:
    """Return the fsspec file system of ``url``, and the path within it."""
    import fsspec

    extra = EXTRAS.get(kind)
    options = {**OPTIONS.get(extra or "", {}), "skip_instance_cache": True, "use_listings_cache": False}
    try:
        fs, path = fsspec.core.url_to_fs(url, **(options if extra else {}))
    except ImportError as error:
        how = f"pip install 'reverie-rl[{extra}]'" if extra else f"{short_error(error)}"
        raise ConfigError(f"the store '{url}' needs a package that is not installed: {how}.") from None
    except Exception as error:  # of any kind: each file system checks its own address
        if "Protocol not known" not in str(error):
            raise ConfigError(f"the store '{url}' cannot be opened: {short_error(error)}.") from None
        schemes = sorted(fsspec.available_protocols())
        raise ConfigError(
            f"the store '{url}': unknown URL scheme {kind}://.{did_you_mean(kind, schemes)} "
            "Expected a folder, s3://, gs://, az://, or another scheme of fsspec."
        ) from None
    return fs, path
