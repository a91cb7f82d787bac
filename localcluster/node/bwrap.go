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
// system read-only without the hidden folders, then the image's folders and the
// pod's volumes, outer ones first.
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
	mounts := placedMounts(cfg.Mounts, resolvConf)
	a = append(a, rootFolders("/", mounts)...)
	a = append(a, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/run")
	for _, m := range withImage(img, mounts) {
		how := "--bind"
		if m.readOnly {
			how = "--ro-bind"
		}
		a = append(a, how, m.source, m.target)
	}
	wd := cfg.WorkingDir
	if wd == "" {
		wd = "/"
	}
	return append(append(a, "--chdir", wd, "--"), argv...), nil
}

// placed is one volume at its real place in the container.
type placed struct {
	source, target string
	readOnly       bool
}

// placedMounts brings a container's volumes in order: outer ones first, since
// /data must not cover /data/model.
func placedMounts(volumes []*rt.Mount, resolvConf string) (out []placed) {
	if resolvConf != "" {
		out = append(out, placed{resolvConf, "/etc/resolv.conf", true})
	}
	for _, v := range volumes {
		out = append(out, placed{v.HostPath, realTarget(v.ContainerPath), v.Readonly})
	}
	outerFirst(out)
	return out
}

// withImage adds the image's folders that lie in hidden places: a volume on
// /tmp must not cover an image that is kept below /tmp.
func withImage(img *image, mounts []placed) (out []placed) {
	for _, folder := range img.Binds {
		if hiddenPlace(folder) {
			out = append(out, placed{folder, folder, true})
		}
	}
	out = append(out, mounts...)
	outerFirst(out)
	return out
}

func outerFirst(mounts []placed) {
	sort.SliceStable(mounts, func(i, j int) bool {
		return strings.Count(mounts[i].target, "/") < strings.Count(mounts[j].target, "/")
	})
}

// realTarget follows the links among a mount point's parents: /var/run/secrets
// is /run/secrets where /var/run is a link. The last part may be a link
// itself (/etc/resolv.conf often is) and is then replaced by the mount.
func realTarget(path string) string {
	path = filepath.Clean(path)
	if hiddenPlace(path) {
		return path // what the machine has there does not matter
	}
	dir := filepath.Dir(path)
	missing := filepath.Base(path)
	for dir != "/" {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, missing)
		}
		dir, missing = filepath.Dir(dir), filepath.Join(filepath.Base(dir), missing)
	}
	return path
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
func rootFolders(dir string, mounts []placed) (a []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		if hidden[p] {
			continue
		}
		below, replaced := false, false
		for _, m := range mounts {
			info, err := os.Lstat(m.target)
			isLink := err == nil && info.Mode()&os.ModeSymlink != 0
			// a link can't be mounted over: it would lead elsewhere
			below = below || strings.HasPrefix(m.target, p+"/") && (err != nil || isLink)
			replaced = replaced || m.target == p && isLink
		}
		switch {
		case replaced:
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
