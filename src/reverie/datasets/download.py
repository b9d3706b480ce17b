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
        staged = folder.with_name(f".{folder.name}.part")
        files = [f"{inside}/*"] if inside else None
        try:
            hub.snapshot_download(f"{OWNER}/{group}", repo_type="dataset", local_dir=staged, allow_patterns=files)
        except Exception as error:  # of many types: from the Hub, the network and the disk
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise RunError(f"cannot download minari:{name}: {reason}. To continue, run this again.") from error
        shutil.rmtree(staged / ".cache", ignore_errors=True)  # the client's notes about the download
        if not (staged / inside / "data" / METADATA).is_file():
            shutil.rmtree(staged)
            raise RunError(f"there is no Minari dataset '{name}' at the Hub: https://huggingface.co/{OWNER}.")
        rename_durably(staged / inside, folder)
        shutil.rmtree(staged, ignore_errors=True)
    return folder
