package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	rt "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandbox is what a pod's containers share: a network namespace and a name.
type sandbox struct {
	id, ip     string
	cfg        *rt.PodSandboxConfig
	state      rt.PodSandboxState
	created    int64
	network    *podNetwork // nil with hostNetwork
	resolvConf string
}

func (r *runtime) RunPodSandbox(_ context.Context, cfg *rt.PodSandboxConfig, _ string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &sandbox{id: r.newID("s"), cfg: cfg, created: time.Now().UnixNano(), ip: nodeAddress(r.index)}
	if cfg.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == rt.NamespaceMode_POD {
		ip, err := r.freeAddress()
		if err != nil {
			return "", err
		}
		s.ip = ip
		if s.network, err = newPodNetwork(ip, fmt.Sprintf("n%dp%d", r.index, r.count)); err != nil {
			return "", err
		}
	}
	if err := s.writeResolvConf(r.dir); err != nil {
		s.network.close()
		return "", err
	}
	r.sandboxes[s.id] = s
	return s.id, nil
}

// freeAddress goes round, so that a new pod does not get the address of one
// that has just gone and is still in somebody's connection pool.
func (r *runtime) freeAddress() (string, error) {
	taken := map[string]bool{}
	for _, s := range r.sandboxes {
		taken[s.ip] = true
	}
	for i := range 250 {
		ip := fmt.Sprintf("10.20.%d.%d", r.index, 2+(r.count+i)%250)
		if !taken[ip] {
			return ip, nil
		}
	}
	return "", fmt.Errorf("node %d has no pod address left (250 pods)", r.index)
}

func (s *sandbox) writeResolvConf(dir string) error {
	dns := s.cfg.GetDnsConfig()
	if dns == nil {
		return nil
	}
	var text strings.Builder
	for _, server := range dns.Servers {
		fmt.Fprintln(&text, "nameserver", server)
	}
	if len(dns.Searches) > 0 {
		fmt.Fprintln(&text, "search", strings.Join(dns.Searches, " "))
	}
	if len(dns.Options) > 0 {
		fmt.Fprintln(&text, "options", strings.Join(dns.Options, " "))
	}
	s.resolvConf = filepath.Join(dir, s.id+".resolv.conf")
	return os.WriteFile(s.resolvConf, []byte(text.String()), 0o644)
}

func (r *runtime) StopPodSandbox(ctx context.Context, id string) error {
	r.mu.Lock()
	var ids []string
	for _, c := range r.containers {
		if c.sandbox == id {
			ids = append(ids, c.id)
		}
	}
	s := r.sandboxes[id]
	r.mu.Unlock()
	for _, c := range ids {
		_ = r.StopContainer(ctx, c, 0)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s != nil && s.state == rt.PodSandboxState_SANDBOX_READY {
		s.state = rt.PodSandboxState_SANDBOX_NOTREADY
		s.network.close()
	}
	return nil
}

func (r *runtime) RemovePodSandbox(ctx context.Context, id string) error {
	_ = r.StopPodSandbox(ctx, id)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.sandbox == id {
			delete(r.containers, c.id)
		}
	}
	if s := r.sandboxes[id]; s != nil && s.resolvConf != "" {
		os.Remove(s.resolvConf)
	}
	delete(r.sandboxes, id)
	return nil
}

func (r *runtime) PodSandboxStatus(_ context.Context, id string, _ bool) (*rt.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return nil, notFound(id)
	}
	return &rt.PodSandboxStatusResponse{Status: &rt.PodSandboxStatus{Id: s.id, Metadata: s.cfg.Metadata, State: s.state, CreatedAt: s.created,
		Network: &rt.PodSandboxNetworkStatus{Ip: s.ip}, Labels: s.cfg.Labels, Annotations: s.cfg.Annotations,
		Linux: &rt.LinuxPodSandboxStatus{Namespaces: &rt.Namespace{Options: s.cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()}}}}, nil
}

func (r *runtime) ListPodSandbox(_ context.Context, f *rt.PodSandboxFilter) (out []*rt.PodSandbox, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sandboxes {
		if f != nil && (f.Id != "" && f.Id != s.id || f.State != nil && f.State.State != s.state || !matches(f.LabelSelector, s.cfg.Labels)) {
			continue
		}
		out = append(out, &rt.PodSandbox{Id: s.id, Metadata: s.cfg.Metadata, State: s.state, CreatedAt: s.created, Labels: s.cfg.Labels, Annotations: s.cfg.Annotations})
	}
	return
}
