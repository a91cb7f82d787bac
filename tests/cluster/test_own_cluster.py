"""`make demo KUBE_CONTEXT=…` on a cluster that is somebody else's to it: other image names, no way into its nodes, one bucket, kubectl only.

It takes two minutes and shows what the demo itself shows, so it runs when asked for: ENGINEFLEET_OWN_CLUSTER=1.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import boto3
import pytest
from botocore.config import Config

from localcluster import Cluster, NodeSpec
from tools.images import build_images

from .fleet import ROOT

IMAGES = {
    "runtime": "enginefleet/runtime:ort-1.24",
    "runtime-other": "enginefleet/runtime:ort-1.23",
    "prepare": "enginefleet/prepare:dev",
    "operator": "enginefleet/operator:dev",
    "agent": "enginefleet/agent:dev",
}


@pytest.mark.skipif(not os.environ.get("ENGINEFLEET_OWN_CLUSTER"), reason="two minutes: set ENGINEFLEET_OWN_CLUSTER=1")
def test_the_demo_runs_on_a_cluster_of_the_readers_own() -> None:
    built = build_images(list(IMAGES.values()))
    with Cluster() as cluster:
        for short, name in IMAGES.items():
            cluster.add_image(replace(built[name], name=f"reader.example/{short}:1"))
        for node in ("one", "two", "three"):
            cluster.add_node(NodeSpec(node))
        s3 = cluster.start_s3()
        client = boto3.client(
            "s3",
            endpoint_url=s3.outside,
            aws_access_key_id=s3.access_key,
            aws_secret_access_key=s3.secret_key,
            region_name=s3.region,
            config=Config(s3={"addressing_style": "path"}),
        )
        client.create_bucket(Bucket="demo")
        given = {
            "KUBECONFIG": str(cluster.kubeconfig_inside),
            "ENGINEFLEET_DEMO_S3": s3.inside,
            "ENGINEFLEET_DEMO_BUCKET": "demo",
            "AWS_ACCESS_KEY_ID": s3.access_key,
            "AWS_SECRET_ACCESS_KEY": s3.secret_key,
            "ENGINEFLEET_DEMO_IMAGES": ",".join(f"{short}=reader.example/{short}:1" for short in IMAGES),
        }
        # inside its network, where one address of the S3 server serves both pods and demo
        done = cluster.run_inside(
            ["make", "-C", str(ROOT), "demo", "KUBE_CONTEXT=localcluster"],
            env=os.environ | given,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        assert "17 of 17 held" in done.stdout
