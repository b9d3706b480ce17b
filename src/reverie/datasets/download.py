"""Downloads Minari's datasets from the Hugging Face Hub."""

from __future__ import annotations

import shutil
from pathlib import Path

from reverie.core.errors import RunError
from reverie.core.files import rename_durably
from reverie.core.lock import lock_beside
from reverie.datasets.minari import METADATA, check_name, minari_root
from reverie.datasets.source import import_optional

OWNER = "farama-minari"


def download_minari(name: str) -> Path:
    """Download the dataset called ``name`` to Minari's folder of datasets, where it appears once it is complete.

    Returns its path. The Hub's client resumes an interrupted download. HF_ENDPOINT names another server.
    """
    check_name(name)
    folder = minari_root() / name
    group, _, inside = name.partition("/")
    hub = import_optional("huggingface_hub", "hub")
    with lock_beside(folder):
        if (folder / "data" / METADATA).is_file():
            return folder
        staged, prefix = folder.with_name(f".{folder.name}.part"), f"{inside}/" if inside else ""
        try:
            listing = hub.HfApi().dataset_info(f"{OWNER}/{group}", revision="main")
            files = [file.rfilename for file in listing.siblings if file.rfilename.startswith(prefix)]
            if files:
                options = {"repo_type": "dataset", "revision": listing.sha, "allow_patterns": f"{prefix}*"}
                hub.snapshot_download(f"{OWNER}/{group}", local_dir=staged, **options)
        except Exception as error:  # of many types: from the Hub, the network and the disk
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise RunError(f"cannot download minari:{name}: {reason}. To continue, run this again.") from error
        if f"{prefix}data/{METADATA}" not in files:
            raise RunError(f"there is no Minari dataset '{name}' at the Hub: https://huggingface.co/{OWNER}.")
        if missing := [file for file in files if not (staged / file).is_file()]:  # the client ignores lost connections
            raise RunError(f"cannot download minari:{name}: {missing[0]} is missing. To continue, run this again.")
        shutil.rmtree(staged / ".cache", ignore_errors=True)  # the client's notes about the download
        for file in {path for path in staged.rglob("*") if path.is_file()} - {staged / file for file in files}:
            file.unlink()  # of an earlier version
        rename_durably(staged / inside, folder)
        shutil.rmtree(staged, ignore_errors=True)
    return folder
