// Command localnode is a whole Kubernetes cluster in one program: etcd, the
// control plane, nodes that are real kubelets, and what ties them together
// (namespaces, network, Service proxy, relays to the outside).
//
// One program, because the parts share most of their code: built apart they
// would be four times the size and the build time.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kcm "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	// These set up logging, which cli.Run does for all of Kubernetes.
	daemons := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": kcm.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"node":                    newNodeCommand,
		"serviceproxy":            newServiceProxyCommand,
	}
	// The error of one of these is read by a person.
	plain := map[string]func() *cobra.Command{"pki": newPKICommand, "supervise": newSuperviseCommand, "init": newInitCommand}
	if len(os.Args) > 1 && os.Args[1] == "etcd" {
		etcdmain.Main(os.Args[1:])
		return
	}
	if len(os.Args) > 1 {
		name := os.Args[1]
		os.Args = os.Args[1:]
		if daemon, ok := daemons[name]; ok {
			os.Exit(cli.Run(daemon()))
		}
		if command, ok := plain[name]; ok {
			// cobra has printed the error
			if command().Execute() != nil {
				os.Exit(1)
			}
			return
		}
	}
	names := []string{"etcd"}
	for _, commands := range []map[string]func() *cobra.Command{daemons, plain} {
		for name := range commands {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	fmt.Fprintf(os.Stderr, "usage: localnode %s ...\n", strings.Join(names, "|"))
	os.Exit(2)
}

// background is the context of commands that run until they are killed.
func background() context.Context { return context.Background() }
