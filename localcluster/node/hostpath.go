package main

import (
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/volume"
)

// nodeRoot is the folder that stands for a node's own file system: its fact
// files (proc/cpuinfo, etc/os-release, sys/...) and its state. Nodes of one
// cluster differ by this folder only.
type nodeRoot string

// resolve says which file a hostPath volume of this node means: the one in
// the node's folder; for a system file that is not there, the machine's own;
// anything else is state and belongs into the node's folder.
func (r nodeRoot) resolve(path string) string {
	own := filepath.Join(string(r), filepath.Clean("/"+path))
	if _, err := os.Lstat(own); err == nil {
		return own
	}
	for _, system := range []string{"/proc", "/sys", "/dev", "/etc", "/usr", "/lib", "/lib64", "/bin", "/sbin"} {
		if path == system || strings.HasPrefix(path, system+"/") {
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
	}
	return own
}

// hostPaths is the kubelet's hostPath plugin, moved below a node's folder.
// The plugin is wrapped, not the runtime, so that the kubelet's own type checks
// (File, DirectoryOrCreate, ...) and the mount agree.
type hostPaths struct {
	volume.VolumePlugin
	root nodeRoot
}

func (p hostPaths) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	if spec.Volume == nil || spec.Volume.HostPath == nil {
		return p.VolumePlugin.NewMounter(spec, pod)
	}
	moved := spec.Volume.DeepCopy()
	moved.HostPath.Path = p.root.resolve(moved.HostPath.Path)
	kind := v1.HostPathUnset
	if moved.HostPath.Type != nil {
		kind = *moved.HostPath.Type
	}
	switch kind {
	case v1.HostPathUnset:
		// container runtimes make a folder of what is missing
		if _, err := os.Stat(moved.HostPath.Path); err != nil {
			if err := os.MkdirAll(moved.HostPath.Path, 0o755); err != nil {
				return nil, err
			}
		}
	case v1.HostPathFileOrCreate:
		// The kubelet makes the file but not its folder, which on a real
		// node is there.
		if err := os.MkdirAll(filepath.Dir(moved.HostPath.Path), 0o755); err != nil {
			return nil, err
		}
	}
	changed := *spec
	changed.Volume = moved
	return p.VolumePlugin.NewMounter(&changed, pod)
}

// unowned wraps plugins that would give files to the pod's user or group. A
// user namespace made without privileges knows one user; handing a file to
// another one fails and the pod would never start. Containers run as that
// one user, so they can read the files anyway.
type unowned struct{ volume.VolumePlugin }

type unownedMounter struct{ volume.Mounter }

func (p unowned) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	m, err := p.VolumePlugin.NewMounter(spec, pod)
	if err != nil {
		return nil, err
	}
	return unownedMounter{m}, nil
}

func (m unownedMounter) SetUp(args volume.MounterArgs) error {
	args.FsUser, args.FsGroup = nil, nil
	return m.Mounter.SetUp(args)
}
