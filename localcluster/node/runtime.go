package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	rt "k8s.io/cri-api/pkg/apis/runtime/v1"
	streaming "k8s.io/cri-streaming/pkg/streaming"
)

// runtime is a container runtime that the kubelet calls in process.
// Containers are processes under bubblewrap; pods have a network namespace.
// It remembers nothing: a node that is started again has no containers, as
// after a reboot, and the kubelet starts its pods anew.
type runtime struct {
	internalapi.RuntimeService // whatever is not written in this package is not called
	mu                         sync.Mutex
	count                      int
	index                      int    // number of the node
	dir                        string // for files that containers see, e.g. resolv.conf
	bwrap                      string
	images                     images
	sandboxes                  map[string]*sandbox
	containers                 map[string]*container
	stream                     streaming.Server
}

func notFound(id string) error { return status.Error(codes.NotFound, "not found: "+id) }

func newRuntime(index int, dir, bwrap string, im images) (*runtime, error) {
	r := &runtime{index: index, dir: dir, bwrap: bwrap, images: im, sandboxes: map[string]*sandbox{}, containers: map[string]*container{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	cfg := streaming.DefaultConfig
	cfg.Addr = l.Addr().String()
	if r.stream, err = streaming.NewServer(cfg, streams{r}); err != nil {
		return nil, err
	}
	go func() { _ = http.Serve(l, r.stream) }()
	return r, nil
}

func (r *runtime) newID(prefix string) string {
	r.count++
	return fmt.Sprintf("%s%d-%d", prefix, r.count, time.Now().UnixNano())
}

func (r *runtime) Version(context.Context, string) (*rt.VersionResponse, error) {
	return &rt.VersionResponse{Version: "0.1.0", RuntimeName: "bwrap", RuntimeVersion: "0.11.0", RuntimeApiVersion: "v1"}, nil
}

func (r *runtime) Status(context.Context, bool) (*rt.StatusResponse, error) {
	return &rt.StatusResponse{Status: &rt.RuntimeStatus{Conditions: []*rt.RuntimeCondition{
		{Type: rt.RuntimeReady, Status: true}, {Type: rt.NetworkReady, Status: true}}}}, nil
}

func (r *runtime) UpdateRuntimeConfig(context.Context, *rt.RuntimeConfig) error { return nil }

func (r *runtime) RuntimeConfig(context.Context) (*rt.RuntimeConfigResponse, error) {
	return &rt.RuntimeConfigResponse{Linux: &rt.LinuxRuntimeConfiguration{CgroupDriver: rt.CgroupDriver_CGROUPFS}}, nil
}

func (r *runtime) Close(context.Context) error { return nil }

func (r *runtime) UpdateContainerResources(context.Context, string, *rt.ContainerResources) error {
	return nil
}

func (r *runtime) ReopenContainerLog(context.Context, string) error { return nil }

func (r *runtime) ListContainerStats(context.Context, *rt.ContainerStatsFilter) ([]*rt.ContainerStats, error) {
	return nil, nil
}

func (r *runtime) ListPodSandboxStats(context.Context, *rt.PodSandboxStatsFilter) ([]*rt.PodSandboxStats, error) {
	return nil, nil
}

func (r *runtime) GetContainerEvents(context.Context, chan *rt.ContainerEventResponse, func(rt.RuntimeService_GetContainerEventsClient)) error {
	return status.Error(codes.Unimplemented, "no events")
}

func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}
