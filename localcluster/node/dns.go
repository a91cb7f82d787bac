package main

import (
	"net"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	clusterDomain = "cluster.local"
	dnsAddress    = "10.96.0.10"
)

// serveDNS answers A questions for NAME.NAMESPACE.svc.cluster.local with the
// Service's address, or with the ready endpoints of a headless Service. Over
// UDP only; every other name does not exist: a cluster has no way out anyway.
func serveDNS(p *serviceProxy) error {
	conn, err := net.ListenPacket("udp", dnsAddress+":53")
	if err != nil {
		return err
	}
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if reply, err := p.answer(buffer[:n]); err == nil {
				_, _ = conn.WriteTo(reply, from)
			}
		}
	}()
	return nil
}

func (p *serviceProxy) answer(query []byte) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, err
	}
	question, err := parser.Question()
	if err != nil {
		return nil, err
	}
	ips, known := p.lookup(question.Name.String())
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired, RecursionAvailable: true},
		Questions: []dnsmessage.Question{question},
	}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	if question.Type == dnsmessage.TypeA {
		for _, ip := range ips {
			a := dnsmessage.AResource{}
			copy(a.A[:], ip.To4())
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: 1}, Body: &a})
		}
	}
	return reply.Pack()
}

// lookup says which addresses a name has, and whether the name exists at all.
func (p *serviceProxy) lookup(name string) (ips []net.IP, known bool) {
	labelsOf := strings.Split(strings.TrimSuffix(strings.ToLower(name), "."), ".")
	suffix := append([]string{"svc"}, strings.Split(clusterDomain, ".")...)
	at := len(labelsOf) - len(suffix)
	if at < 2 || strings.Join(labelsOf[at:], ".") != strings.Join(suffix, ".") {
		return nil, false
	}
	host, service, namespace := "", labelsOf[at-2], labelsOf[at-1]
	if at > 2 {
		host = labelsOf[0]
	}
	s, err := p.services.Services(namespace).Get(service)
	if err != nil {
		return nil, false
	}
	if s.Spec.ClusterIP != v1.ClusterIPNone {
		return []net.IP{net.ParseIP(s.Spec.ClusterIP)}, host == ""
	}
	slices, _ := p.slices.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{discovery.LabelServiceName: service}))
	for _, slice := range slices {
		for _, e := range slice.Endpoints {
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			if ready && (host == "" || e.Hostname != nil && *e.Hostname == host) {
				for _, ip := range e.Addresses {
					ips = append(ips, net.ParseIP(ip))
				}
			}
		}
	}
	return ips, host == "" || len(ips) > 0
}
