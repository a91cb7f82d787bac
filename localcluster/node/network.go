package main

import (
	"fmt"
	"net"
	"os"
	goruntime "runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The addresses of every cluster are the same, because every cluster has a
// network namespace of its own:
//
//	10.20.N.2 ... 10.20.N.251  pods of node N
//	10.20.254.1                the S3 server
//	10.20.255.1                the API server, and the pods' gateway
//	10.21.0.N                  nodes (their kubelets)
//	10.96.0.0/16               Services
const (
	bridgeName    = "pods"
	bridgeAddress = "10.20.255.1/15"
	s3Address     = "10.20.254.1/32"
	serviceRange  = "10.96.0.0/16"
)

func setUpNetwork() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	// Without an address of its own a bridge takes the lowest of its ports': it would change as pods come and go, and what the other pods
	// know of their gateway would be wrong for half a minute.
	gateway := net.HardwareAddr{0x02, 0x00, 0x0a, 0x14, 0xff, 0x01}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName, HardwareAddr: gateway}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("adding a bridge (kernel module bridge): %w", err)
	}
	if err := addAddress(bridge, bridgeAddress); err != nil {
		return err
	}
	if err := addAddress(bridge, s3Address); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return err
	}
	// Every Service address is local, so the Service proxy can listen on
	// it; nothing is forwarded by the kernel.
	services, err := netlink.ParseIPNet(serviceRange)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: services, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST})
}

func addAddress(link netlink.Link, address string) error {
	parsed, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return netlink.AddrReplace(link, parsed)
}

func nodeAddress(index int) string { return fmt.Sprintf("10.21.0.%d", index) }

// addNodeAddress gives a node its address, at which its kubelet listens.
func addNodeAddress(index int) error {
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	return addAddress(bridge, nodeAddress(index)+"/32")
}

// podNetwork is one pod's network namespace. It lasts as long as the file is
// open, so that it vanishes with the node's process.
type podNetwork struct {
	file *os.File
	ip   string
}

// newPodNetwork makes a network namespace with a loopback device and one
// interface on the cluster's bridge.
func newPodNetwork(ip, hostSide string) (*podNetwork, error) {
	file, err := newNetworkNamespace()
	if err != nil {
		return nil, err
	}
	p := &podNetwork{file: file, ip: ip}
	if err := p.connect(hostSide); err != nil {
		p.close()
		return nil, fmt.Errorf("pod network %s: %w", ip, err)
	}
	return p, nil
}

func newNetworkNamespace() (*os.File, error) {
	type result struct {
		file *os.File
		err  error
	}
	made := make(chan result)
	go func() {
		// Never unlocked: Go then ends this thread, which is in the new
		// namespace, with the goroutine.
		goruntime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- result{nil, err}
			return
		}
		file, err := os.Open("/proc/thread-self/ns/net")
		made <- result{file, err}
	}()
	r := <-made
	return r.file, r.err
}

func (p *podNetwork) connect(hostSide string) error {
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: hostSide, MasterIndex: bridge.Attrs().Index},
		PeerName:  "eth0", PeerNamespace: netlink.NsFd(int(p.file.Fd())),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return err
	}
	inside, err := netlink.NewHandleAt(netns.NsHandle(int(p.file.Fd())))
	if err != nil {
		return err
	}
	defer inside.Close()
	for _, name := range []string{"lo", "eth0"} {
		link, err := inside.LinkByName(name)
		if err != nil {
			return err
		}
		if name == "eth0" {
			address, err := netlink.ParseAddr(p.ip + "/15")
			if err != nil {
				return err
			}
			if err := inside.AddrAdd(link, address); err != nil {
				return err
			}
		}
		if err := inside.LinkSetUp(link); err != nil {
			return err
		}
	}
	gateway, _, err := net.ParseCIDR(bridgeAddress)
	if err != nil {
		return err
	}
	return inside.RouteAdd(&netlink.Route{Gw: gateway})
}

// do runs f on a thread that is in the pod's network namespace: processes
// that f starts and sockets that it opens belong to the pod.
func (p *podNetwork) do(f func() error) error {
	if p == nil { // a pod with hostNetwork
		return f()
	}
	goruntime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		goruntime.UnlockOSThread()
		return err
	}
	defer own.Close()
	if err := unix.Setns(int(p.file.Fd()), unix.CLONE_NEWNET); err != nil {
		goruntime.UnlockOSThread()
		return err
	}
	err = f()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread must not serve other goroutines: it stays locked and
		// ends with this one.
		return back
	}
	goruntime.UnlockOSThread()
	return err
}

func (p *podNetwork) close() {
	if p != nil {
		p.file.Close() // the kernel removes both ends of the veth pair
	}
}
