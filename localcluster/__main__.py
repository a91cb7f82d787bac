"""`python -m localcluster`: a local cluster from the command line. Progress goes to standard error, results to standard output."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from localcluster import tools
from localcluster.cluster import Cluster
from localcluster.errors import LocalClusterError
from localcluster.images import Image, read_map, virtual_environment
from localcluster.nodes import NodeSpec
from localcluster.progress import Progress, silent, to_stderr


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m localcluster", description="A real Kubernetes cluster on this machine, without root or containers."
    )
    parser.add_argument("--dir", type=Path, default=tools.cache_dir() / "cluster", help="the cluster's folder (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print results as JSON, and no progress")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start a cluster that stays until `down`")
    up.add_argument(
        "--nodes", type=int, default=1, help="nodes to add, named node-1, node-2, ...; node-1 gets nvidia.com/gpu=1 (default: %(default)s)"
    )
    up.add_argument("--s3", action="store_true", help="start the S3 server too")
    up.add_argument("--grace", type=float, default=8.0, help="seconds that a silent node stays Ready (default: %(default)s)")
    up.add_argument("--audit", choices=("off", "writes", "all"), default="writes", help="what audit.log records (default: %(default)s)")
    commands.add_parser("down", help="end the cluster and remove its folder")
    commands.add_parser("status", help="show processes, nodes and addresses")
    add = commands.add_parser("add-node", help="add a node")
    add.add_argument("name")
    add.add_argument("--label", type=_pair, action="append", default=[], metavar="KEY=VALUE")
    add.add_argument("--taint", action="append", default=[], metavar="KEY=VALUE:EFFECT")
    add.add_argument("--extended", type=_pair, action="append", default=[], metavar="RESOURCE=AMOUNT", help="e.g. nvidia.com/gpu=1")
    add.add_argument("--cpus", type=int, default=4)
    add.add_argument("--memory", default="8Gi")
    add.add_argument("--root", type=Path, help="folder of fact files that hostPath volumes of this node see")
    for verb, text in (
        ("start", "start a stopped node, with a new boot id"), ("stop", "cut a node's power"), ("reboot", "stop and start a node"),
        ("pause", "freeze a node's kubelet"), ("continue", "let a paused node go on"), ("remove", "stop a node and forget it"),
    ):  # fmt: skip
        commands.add_parser(f"{verb}-node", help=text).add_argument("name")
    _image_parser(commands.add_parser("image", help="change the image map"))
    kubectl = commands.add_parser("kubectl", help="run kubectl on the cluster; everything behind it is kubectl's")
    kubectl.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _image_parser(image: argparse.ArgumentParser) -> None:
    actions = image.add_subparsers(dest="action", required=True)
    add = actions.add_parser("add", help="add or replace an image")
    add.add_argument("name", help="e.g. enginefleet/runtime:ort-1.24")
    add.add_argument("--venv", type=Path, help="virtual environment that the image stands for")
    add.add_argument("--env", type=_pair, action="append", default=[], metavar="KEY=VALUE")
    add.add_argument("--entrypoint", nargs="+", default=[], help="command of containers that name none")
    add.add_argument("--bind", type=Path, action="append", default=[], help="folder that containers must see read-only")
    add.add_argument("--digest", default="", help="sha256:... (default: computed)")
    actions.add_parser("remove", help="remove an image").add_argument("name")
    actions.add_parser("list", help="list images")


def _up(args: argparse.Namespace, say: Progress) -> None:
    audit: bool | str = "all" if args.audit == "all" else args.audit == "writes"
    cluster = Cluster(args.dir, audit=audit, grace=args.grace, detached=True, progress=say).up()
    names = [f"node-{number}" for number in range(1, args.nodes + 1)]
    for name in names:
        cluster.add_node(NodeSpec(name, extended={"nvidia.com/gpu": "1"} if name == names[0] else {}), wait=False)
    cluster.wait_ready(*names)
    result = {"dir": str(cluster.dir), "kubeconfig": str(cluster.kubeconfig)}
    if args.s3:
        s3 = cluster.start_s3()
        result |= {"s3_inside": s3.inside, "s3_outside": s3.outside, "s3_access_key": s3.access_key, "s3_secret_key": s3.secret_key}
    print(json.dumps(result, indent=1) if args.json else "\n".join(f"{key}: {value}" for key, value in result.items()))


def _image(args: argparse.Namespace, cluster: Cluster) -> None:
    if args.action == "add":
        env, binds, entrypoint = dict(args.env), tuple(args.bind), tuple(args.entrypoint)
        if args.venv:
            image = virtual_environment(args.name, args.venv, entrypoint, env, binds=binds, digest=args.digest)
        else:
            image = Image(args.name, env, entrypoint, binds, args.digest)
        digest = cluster.add_image(image)
        print(json.dumps({"name": args.name, "digest": digest}) if args.json else f"{args.name}@{digest}")
    elif args.action == "remove":
        cluster.remove_image(args.name)
    else:
        entries = read_map(cluster.dir / "images.json")
        print(
            json.dumps(entries, indent=1)
            if args.json
            else "\n".join(f"{name}@{entry['digest']}" for name, entry in sorted(entries.items()))
        )


def _status(args: argparse.Namespace, cluster: Cluster) -> None:
    status = cluster.status()
    if args.json:
        print(json.dumps(status, indent=1))
        return
    print(f"dir: {status['dir']}\nkubeconfig: {status['kubeconfig']}")
    for name, process in status["processes"].items():
        print(f"process {name}: {'running' if process['running'] else 'ended with ' + str(process['exit_code'])}")
    for name, node in status["nodes"].items():
        print(f"node {name}: Ready={node['ready']} root={node['root']}")
    for inside, port in status["relays"].items():
        print(f"relay 127.0.0.1:{port} -> {inside}")


def _down(directory: Path, say: Progress) -> None:
    if not (directory / "cluster.json").exists():
        say(f"there is no cluster in {directory}")
        return
    Cluster.attach(directory).down()
    say(f"the cluster in {directory} is gone")


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit status."""
    args = _parser().parse_args(argv)
    say = silent if args.json else to_stderr()
    if args.command == "up":
        _up(args, say)
        return 0
    if args.command == "down":
        _down(args.dir, say)
        return 0
    cluster = Cluster.attach(args.dir, progress=say)
    if args.command == "status":
        _status(args, cluster)
    elif args.command == "image":
        _image(args, cluster)
    elif args.command == "kubectl":
        kubectl = str(tools.tool("kubectl", say))
        os.execv(kubectl, [kubectl, "--kubeconfig", str(cluster.kubeconfig), *args.arguments])
    elif args.command == "add-node":
        spec = NodeSpec(args.name, dict(args.label), tuple(args.taint), args.cpus, args.memory, dict(args.extended), args.root)
        cluster.add_node(spec)
    else:
        getattr(cluster, args.command.replace("-", "_"))(args.name)
        say(f"{args.command} {args.name}: done")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(run())
    except LocalClusterError as error:
        sys.exit(f"error: {error}")
