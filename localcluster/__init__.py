"""A real Kubernetes control plane and nodes on one machine, without root, containers or images: for the demo and the tests.

with Cluster() as cluster:
    cluster.add_image(virtual_environment("enginefleet/runtime:ort-1.24", Path(".venv")))
    cluster.add_node(NodeSpec(name="node-a", extended={"nvidia.com/gpu": "1"}))
    cluster.kubectl("get", "nodes")
"""

from localcluster.audit import AuditEvent
from localcluster.cluster import Cluster
from localcluster.errors import KubectlError, LocalClusterError, ToolError, UnsupportedHost
from localcluster.images import Image, virtual_environment
from localcluster.nodes import NodeSpec
from localcluster.s3 import S3Endpoint, S3Server

__all__ = [
    "AuditEvent",
    "Cluster",
    "Image",
    "KubectlError",
    "LocalClusterError",
    "NodeSpec",
    "S3Endpoint",
    "S3Server",
    "ToolError",
    "UnsupportedHost",
    "virtual_environment",
]
