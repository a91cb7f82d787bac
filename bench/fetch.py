"""How fast a blob comes from the store: ours (in parts, verified by sha256) against boto3's plain `download_file`, each in a process of its own.

`python -m bench.fetch measure ours|boto3 …` is one measurement, printed as JSON; compare() makes several and keeps the best of each.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

BUCKET, KEY = "bench", "blob"
ROUNDS = 5


def compare(endpoint: str, access_key: str, secret_key: str, megabytes: int = 200) -> dict[str, Any]:
    """{ratio_to_boto3, rss_mb, …}: the ratio of speeds (above 1: ours is faster), and the most memory that our process took."""
    client = _client(endpoint, access_key, secret_key)
    client.create_bucket(Bucket=BUCKET)
    with tempfile.TemporaryDirectory(prefix="enginefleet-bench-") as scratch:
        folder = Path(scratch)
        blob = folder / "blob"
        with blob.open("wb") as file:
            for _ in range(megabytes):
                file.write(os.urandom(1_000_000))
        client.upload_file(str(blob), BUCKET, KEY)
        environment = {**os.environ, "ENGINEFLEET_STORE_ACCESS_KEY_ID": access_key, "ENGINEFLEET_STORE_SECRET_ACCESS_KEY": secret_key}
        results: dict[str, list[dict[str, float]]] = {"ours": [], "boto3": []}
        for _ in range(ROUNDS):
            # in turns, so that a busy minute of the machine hits both
            for who, measured in results.items():
                argv = [sys.executable, "-m", "bench.fetch", "measure", who, endpoint, str(folder / who), str(megabytes * 1_000_000)]
                done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise RuntimeError(f"{' '.join(argv)}: {done.stderr}")
                measured.append(json.loads(done.stdout))
    best = {who: min(one["seconds"] for one in several) for who, several in results.items()}
    return {
        "megabytes": megabytes,
        "rounds": ROUNDS,
        "ratio_to_boto3": round(best["boto3"] / best["ours"], 2),
        "mb_per_second": round(megabytes / best["ours"], 1),
        "boto3_mb_per_second": round(megabytes / best["boto3"], 1),
        "rss_mb": round(max(measured["rss_mb"] for measured in results["ours"]), 1),
        "boto3_rss_mb": round(max(measured["rss_mb"] for measured in results["boto3"]), 1),
    }


def _client(endpoint: str, access_key: str, secret_key: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )


def _measure(who: str, endpoint: str, target: Path, size: int) -> dict[str, float]:
    access, secret = os.environ["ENGINEFLEET_STORE_ACCESS_KEY_ID"], os.environ["ENGINEFLEET_STORE_SECRET_ACCESS_KEY"]
    target.unlink(missing_ok=True)
    if who == "ours":
        from enginefleet_api.jobs import StoreRef
        from enginefleet_builder.store import open_store

        store = open_store(StoreRef(uri=f"s3://{BUCKET}/", endpoint=endpoint, region="us-east-1"), writes=False)
        began = time.perf_counter()
        store.download(KEY, target, size=size)
    else:
        client = _client(endpoint, access, secret)
        began = time.perf_counter()
        client.download_file(BUCKET, KEY, str(target))
    seconds = time.perf_counter() - began
    assert target.stat().st_size == size
    return {"seconds": seconds, "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[2], sys.argv[3], Path(sys.argv[4]), int(sys.argv[5]))))
