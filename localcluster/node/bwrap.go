package main

import (
	"errors"
	"os"
	"path/filepath"
	"sort"
	"strings"

	rt "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hidden folders of the machine are not in a container: they would let a pod
// read the user's own files, or differ from machine to machine. /run and /mnt
// are also where a node keeps its state (shortenState).
var hidden = map[string]bool{"/proc": true, "/dev": true, "/tmp": true, "/root": true, "/home": true, "/run": true, "/mnt": true, "/lost+found": true}

// bwrapArgs are bubblewrap's arguments for one container: the machine's file
// system read-only without the hidden folders, then the image's folders, then
// the pod's volumes.
func bwrapArgs(cfg *rt.ContainerConfig, img *image, hostname, resolvConf string) ([]string, error) {
	command := cfg.Command
	if len(command) == 0 {
		command = img.Entrypoint
	}
	argv := append(append([]string{}, command...), cfg.Args...)
	if len(argv) == 0 {
		return nil, errors.New("the container names no command and image " + img.Name + " has no entrypoint")
	}
	a := []string{"--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1", "--new-session", "--info-fd", "3", "--hostname", hostname}
	a = append(a, capabilities(cfg)...)
	a = append(a, environment(cfg, img, hostname)...)
	mounts := cfg.Mounts
	if resolvConf != "" {
		mounts = append([]*rt.Mount{{ContainerPath: "/etc/resolv.conf", HostPath: resolvConf, Readonly: true}}, mounts...)
	}
	a = append(a, rootFolders("/", mounts)...)
	a = append(a, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/run")
	for _, folder := range img.Binds {
		if hiddenPlace(folder) {
			a = append(a, "--ro-bind", folder, folder)
		}
	}
	// Outer mounts first: /data must not cover /data/model.
	mounts = append([]*rt.Mount{}, mounts...)
	sort.SliceStable(mounts, func(i, j int) bool {
		return strings.Count(mounts[i].ContainerPath, "/") < strings.Count(mounts[j].ContainerPath, "/")
	})
	for _, m := range mounts {
		how := "--bind"
		if m.Readonly {
			how = "--ro-bind"
		}
		a = append(a, how, m.HostPath, filepath.Clean(m.ContainerPath))
	}
	wd := cfg.WorkingDir
	if wd == "" {
		wd = "/"
	}
	return append(append(a, "--chdir", wd, "--"), argv...), nil
}

// environment: the container's own variables win over the image's.
func environment(cfg *rt.ContainerConfig, img *image, hostname string) []string {
	a := []string{"--clearenv", "--setenv", "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "--setenv", "HOME", "/", "--setenv", "HOSTNAME", hostname}
	for key, value := range img.Env {
		a = append(a, "--setenv", key, value)
	}
	for _, e := range cfg.Envs {
		a = append(a, "--setenv", e.Key, string(e.Value))
	}
	return a
}

// capabilities are the default ones of other runtimes, as far as they mean
// something here, or none when the pod drops ALL.
func capabilities(cfg *rt.ContainerConfig) []string {
	sc := cfg.GetLinux().GetSecurityContext()
	if sc.GetPrivileged() {
		return nil
	}
	a := []string{"--cap-drop", "ALL"}
	for _, c := range sc.GetCapabilities().GetDropCapabilities() {
		if strings.EqualFold(c, "ALL") {
			return a
		}
	}
	for _, c := range []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_NET_BIND_SERVICE"} {
		a = append(a, "--cap-add", c)
	}
	return a
}

func hiddenPlace(path string) bool {
	for h := range hidden {
		if path == h || strings.HasPrefix(path, h+"/") {
			return true
		}
	}
	return false
}

// rootFolders binds what a folder of the machine contains. bubblewrap can't
// make a mount point inside a read-only bind, so a folder in which a volume
// needs one that does not exist is rebuilt from its entries.
func rootFolders(dir string, mounts []*rt.Mount) (a []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		if hidden[p] {
			continue
		}
		below, at := false, false
		for _, m := range mounts {
			target := filepath.Clean(m.ContainerPath)
			info, err := os.Lstat(target)
			isLink := err == nil && info.Mode()&os.ModeSymlink != 0
			// a link can't be mounted over: it would lead elsewhere
			below = below || strings.HasPrefix(target, p+"/") && (err != nil || isLink)
			at = at || target == p && isLink
		}
		switch {
		case at:
		case below:
			a = append(a, "--dir", p)
			a = append(a, rootFolders(p, mounts)...)
		case e.Type()&os.ModeSymlink != 0:
			t, _ := os.Readlink(p)
			a = append(a, "--symlink", t, p)
		default:
			a = append(a, "--ro-bind", p, p)
		}
	}
	return a
}
