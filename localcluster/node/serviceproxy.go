package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// newServiceProxyCommand stands in for kube-proxy, which needs netfilter: it
// listens on every Service's own address and hands connections to a ready
// endpoint. TCP only. It also answers the cluster's DNS questions (dns.go).
func newServiceProxyCommand() *cobra.Command {
	var kubeconfig string
	cmd := &cobra.Command{Use: "serviceproxy", SilenceUsage: true, RunE: func(*cobra.Command, []string) error {
		cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return err
		}
		client, err := clientset.NewForConfig(cfg)
		if err != nil {
			return err
		}
		return runServiceProxy(client)
	}}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of system:kube-proxy")
	return cmd
}

type serviceProxy struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	fronts   map[string]*front // by address:port of the Service
}

// front is one port of one Service.
type front struct {
	listener net.Listener
	backends atomic.Pointer[[]string]
	next     atomic.Uint64
}

func runServiceProxy(client clientset.Interface) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	services, slices := factory.Core().V1().Services(), factory.Discovery().V1().EndpointSlices()
	p := &serviceProxy{services: services.Lister(), slices: slices.Lister(), fronts: map[string]*front{}}
	// One slot: any number of changes while a round runs make one more round.
	changed := make(chan struct{}, 1)
	note := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { note() }, UpdateFunc: func(any, any) { note() }, DeleteFunc: func(any) { note() }}
	for _, informer := range []cache.SharedIndexInformer{services.Informer(), slices.Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	factory.Start(background().Done())
	factory.WaitForCacheSync(background().Done())
	if err := serveDNS(p); err != nil {
		return err
	}
	for {
		if err := p.reconcile(); err != nil {
			klog.ErrorS(err, "service proxy")
			time.AfterFunc(time.Second, note)
		}
		<-changed
	}
}

// reconcile makes the open listeners equal to what Services and EndpointSlices say.
func (p *serviceProxy) reconcile() error {
	all, err := p.services.List(labels.Everything())
	if err != nil {
		return err
	}
	var failed []error
	wanted := map[string]bool{}
	for _, service := range all {
		if service.Spec.ClusterIP == "" || service.Spec.ClusterIP == v1.ClusterIPNone {
			continue
		}
		for _, port := range service.Spec.Ports {
			if port.Protocol != v1.ProtocolTCP && port.Protocol != "" {
				continue
			}
			address := net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(int(port.Port)))
			wanted[address] = true
			backends := p.backends(service, port.Name)
			if f := p.fronts[address]; f != nil {
				f.backends.Store(&backends)
				continue
			}
			f, err := newFront(address, backends)
			if err != nil {
				failed = append(failed, fmt.Errorf("%s/%s: %w", service.Namespace, service.Name, err))
				continue
			}
			p.fronts[address] = f
		}
	}
	for address, f := range p.fronts {
		if !wanted[address] {
			f.listener.Close()
			delete(p.fronts, address)
		}
	}
	return errors.Join(failed...)
}

// backends are the ready endpoints of a Service's port.
func (p *serviceProxy) backends(service *v1.Service, port string) (out []string) {
	selector := labels.SelectorFromSet(labels.Set{discovery.LabelServiceName: service.Name})
	slices, _ := p.slices.EndpointSlices(service.Namespace).List(selector)
	for _, slice := range slices {
		for _, sp := range slice.Ports {
			if sp.Port == nil || sp.Name != nil && *sp.Name != port {
				continue
			}
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready == nil || *e.Conditions.Ready {
					for _, ip := range e.Addresses {
						out = append(out, net.JoinHostPort(ip, strconv.Itoa(int(*sp.Port))))
					}
				}
			}
		}
	}
	return out
}

func newFront(address string, backends []string) (*front, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	f := &front{listener: l}
	f.backends.Store(&backends)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go join(c, f.dial)
		}
	}()
	return f, nil
}

// dial tries every ready endpoint once, beginning with the next in turn. With
// none, the caller's connection is closed, which a client sees as a refusal.
func (f *front) dial() (net.Conn, error) {
	backends := *f.backends.Load()
	turn := int(f.next.Add(1))
	err := errors.New("no ready endpoint")
	for i := range backends {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", backends[(turn+i)%len(backends)], 2*time.Second); err == nil {
			return c, nil
		}
	}
	return nil, err
}
