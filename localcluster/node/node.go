package main

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	cadvisorapi "github.com/google/cadvisor/lib/model"
	"github.com/spf13/cobra"
	noop "go.opentelemetry.io/otel/trace/noop"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	cadvisortest "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubeletutil "k8s.io/kubernetes/pkg/kubelet/util"
	"k8s.io/kubernetes/pkg/util/oom"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/configmap"
	"k8s.io/kubernetes/pkg/volume/downwardapi"
	"k8s.io/kubernetes/pkg/volume/emptydir"
	"k8s.io/kubernetes/pkg/volume/hostpath"
	"k8s.io/kubernetes/pkg/volume/projected"
	"k8s.io/kubernetes/pkg/volume/secret"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
	"k8s.io/mount-utils"
)

// nodeOptions describe one node.
type nodeOptions struct {
	name, server, pki, state, root, memory, bwrap, imageMap string
	index, cpus                                             int
	extended                                                map[string]string
	maxBackoff, heartbeat                                   time.Duration
}

// newNodeCommand runs one kubelet whose containers are local processes. It
// expects to be the first process of a PID namespace: its end ends them all.
// Labels and taints are on the Node object already (cluster.py): NodeRestriction
// forbids a kubelet the labels that feature discovery sets on real clusters.
func newNodeCommand() *cobra.Command {
	var o nodeOptions
	cmd := &cobra.Command{Use: "node", SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return o.run() }}
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "node name")
	f.IntVar(&o.index, "index", 1, "number of the node, 1 to 249: decides its address and its pods' addresses")
	f.StringVar(&o.server, "server", "", "URL of the API server")
	f.StringVar(&o.pki, "pki", "", "folder of the cluster's authority, which signs the node's certificates")
	f.StringVar(&o.state, "state", "", "folder for the kubelet's state")
	f.StringVar(&o.root, "root", "", "folder that stands for the node's file system in hostPath volumes")
	f.StringVar(&o.imageMap, "images", "", "image map, a JSON file")
	f.StringVar(&o.bwrap, "bwrap", "bwrap", "path of bubblewrap")
	f.StringVar(&o.memory, "memory", "8Gi", "memory that the node says it has")
	f.IntVar(&o.cpus, "cpus", 4, "processors that the node says it has")
	f.StringToStringVar(&o.extended, "extended", nil, "extended resources, e.g. nvidia.com/gpu=1")
	f.DurationVar(&o.maxBackoff, "max-backoff", 10*time.Second, "longest wait before a container is restarted")
	f.DurationVar(&o.heartbeat, "heartbeat", 2*time.Second, "time between two signs of life")
	return cmd
}

func (o *nodeOptions) run() error {
	if err := ownProc(); err != nil {
		return err
	}
	if err := addNodeAddress(o.index); err != nil {
		return err
	}
	if err := o.shortenState(); err != nil {
		return err
	}
	client, err := o.client()
	if err != nil {
		return err
	}
	flags, config, err := o.kubelet()
	if err != nil {
		return err
	}
	deps, err := o.dependencies(client)
	if err != nil {
		return err
	}
	if err := kubeletapp.RunKubelet(background(), &options.KubeletServer{KubeletFlags: *flags, KubeletConfiguration: *config}, deps); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	select {}
}

// shortenState makes the state folder known under a short name: the kubelet
// opens Unix sockets in it, whose addresses have at most 108 bytes. The name
// is taken from a folder that containers don't see anyway, and in this node's
// mount namespace only.
func (o *nodeOptions) shortenState() error {
	for _, short := range []string{"/run", "/mnt"} {
		inUse := false
		for _, path := range []string{o.state, o.root, o.pki, o.imageMap, o.bwrap} {
			inUse = inUse || strings.HasPrefix(path, short+"/")
		}
		if _, err := os.Stat(short); err != nil || inUse {
			continue
		}
		if err := syscall.Mount(o.state, short, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("binding %s to %s: %w", o.state, short, err)
		}
		o.state = short
		return nil
	}
	return nil
}

// client speaks to the API server as this node, with a certificate made on
// the spot: the Node authorizer and NodeRestriction see a real node.
func (o *nodeOptions) client() (*clientset.Clientset, error) {
	authority, err := readAuthority(o.pki)
	if err != nil {
		return nil, err
	}
	cert, key, err := authority.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "system:node:" + o.name, Organization: []string{"system:nodes"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, err
	}
	return clientset.NewForConfig(&rest.Config{Host: o.server, QPS: 50, Burst: 100,
		TLSClientConfig: rest.TLSClientConfig{CAData: authority.pem(), CertData: cert, KeyData: key}})
}

func (o *nodeOptions) kubelet() (*options.KubeletFlags, *kubeletconfig.KubeletConfiguration, error) {
	flags := options.NewKubeletFlags()
	flags.RootDirectory, flags.HostnameOverride, flags.NodeIP = o.state, o.name, nodeAddress(o.index)
	c, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, nil, err
	}
	c.Address, c.Port, c.ReadOnlyPort, c.EnableServer = nodeAddress(o.index), 10250, 0, true
	c.HealthzPort = 0
	// No cgroups: an ordinary user may not make them everywhere. Limits are
	// not enforced.
	c.CgroupsPerQOS, c.EnforceNodeAllocatable, c.EnableControllerAttachDetach = false, nil, false
	c.PodLogsDir, c.FailSwapOn, c.ProtectKernelDefaults = filepath.Join(o.state, "logs"), false, false
	c.RegisterNode, c.EvictionHard, c.LocalStorageCapacityIsolation = true, nil, false
	c.SyncFrequency.Duration = 10 * time.Second
	c.ClusterDomain, c.ClusterDNS = clusterDomain, []string{dnsAddress}
	c.NodeStatusUpdateFrequency.Duration = o.heartbeat
	// the kubelet renews its lease four times in a lease's duration
	c.NodeLeaseDurationSeconds = max(1, int32(4*o.heartbeat/time.Second))
	c.CrashLoopBackOff.MaxContainerRestartPeriod = &metav1.Duration{Duration: o.maxBackoff}
	// Secrets and ConfigMaps that change must be seen without minutes of wait.
	c.ConfigMapAndSecretChangeDetectionStrategy = "Watch"
	c.FeatureGates = map[string]bool{"KubeletInUserNamespace": true}
	return flags, c, utilfeature.DefaultMutableFeatureGate.SetFromMap(c.FeatureGates)
}

func (o *nodeOptions) dependencies(client *clientset.Clientset) (*kubelet.Dependencies, error) {
	runtime, err := newRuntime(o.index, o.state, o.bwrap, images{o.imageMap})
	if err != nil {
		return nil, err
	}
	cert, err := o.servingCertificate()
	if err != nil {
		return nil, err
	}
	var manager cm.ContainerManager = cm.NewStubContainerManager()
	if len(o.extended) > 0 {
		resources := v1.ResourceList{}
		for name, amount := range o.extended {
			if resources[v1.ResourceName(name)], err = resource.ParseQuantity(amount); err != nil {
				return nil, fmt.Errorf("extended resource %s=%s: %w", name, amount, err)
			}
		}
		manager = cm.NewStubContainerManagerWithDevicePluginResource(resources)
	}
	memory, err := resource.ParseQuantity(o.memory)
	if err != nil {
		return nil, fmt.Errorf("memory %s: %w", o.memory, err)
	}
	return &kubelet.Dependencies{
		KubeClient: client, HeartbeatClient: client, EventClient: client.CoreV1(),
		RemoteRuntimeService: runtime, RemoteImageService: runtime.images,
		CAdvisorInterface: &machine{cpus: o.cpus, memory: uint64(memory.Value()), root: nodeRoot(o.root)},
		ContainerManager:  manager, VolumePlugins: o.volumes(), OOMAdjuster: oom.NewFakeOOMAdjuster(),
		// Nothing is mounted: emptyDir is a folder also with medium Memory.
		Mounter: &mount.FakeMounter{}, Subpather: &subpaths{}, HostUtil: hostutil.NewHostUtil(),
		TLSConfig:                 &tls.Config{Certificates: []tls.Certificate{cert}},
		PodStartupLatencyTracker:  kubeletutil.NewPodStartupLatencyTracker(),
		NodeStartupLatencyTracker: kubeletutil.NewNodeStartupLatencyTracker(klog.TODO()),
		TracerProvider:            noop.NewTracerProvider(),
	}, nil
}

func (o *nodeOptions) servingCertificate() (tls.Certificate, error) {
	authority, err := readAuthority(o.pki)
	if err != nil {
		return tls.Certificate{}, err
	}
	cert, key, err := authority.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: o.name}, IPAddresses: []net.IP{net.ParseIP(nodeAddress(o.index))},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

func (o *nodeOptions) volumes() (out []volume.VolumePlugin) {
	for _, plugins := range [][]volume.VolumePlugin{emptydir.ProbeVolumePlugins(), secret.ProbeVolumePlugins(), downwardapi.ProbeVolumePlugins(),
		configmap.ProbeVolumePlugins(), projected.ProbeVolumePlugins()} {
		for _, p := range plugins {
			out = append(out, unowned{p})
		}
	}
	for _, p := range hostpath.ProbeVolumePlugins(volume.VolumeConfig{}) {
		out = append(out, hostPaths{p, nodeRoot(o.root)})
	}
	return out
}

// machine is a cadvisor that knows the size and the identity of a node.
type machine struct {
	cadvisortest.Fake
	cpus   int
	memory uint64
	root   nodeRoot
}

func (m *machine) fact(path string) string {
	text, _ := os.ReadFile(m.root.resolve(path))
	return strings.TrimSpace(string(text))
}

func (m *machine) MachineInfo(klog.Logger) (*cadvisorapi.MachineInfo, error) {
	id := m.fact("/etc/machine-id")
	return &cadvisorapi.MachineInfo{NumCores: m.cpus, MemoryCapacity: m.memory, MachineID: id, SystemUUID: id,
		BootID: m.fact("/proc/sys/kernel/random/boot_id")}, nil
}

func (m *machine) VersionInfo() (*cadvisorapi.VersionInfo, error) {
	os := "linux"
	for line := range strings.SplitSeq(m.fact("/etc/os-release"), "\n") {
		if name, found := strings.CutPrefix(line, "PRETTY_NAME="); found {
			os = strings.Trim(name, `"`)
		}
	}
	return &cadvisorapi.VersionInfo{KernelVersion: m.fact("/proc/sys/kernel/osrelease"), ContainerOsVersion: os}, nil
}

// subpaths makes the folder of a subPath; binding it is bubblewrap's work.
type subpaths struct{ subpath.FakeSubpath }

func (subpaths) SafeMakeDir(dir, base string, perm os.FileMode) error {
	return os.MkdirAll(filepath.Join(base, dir), perm)
}
