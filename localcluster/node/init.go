package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// newInitCommand is the first process inside a cluster's namespaces: it makes
// the network, then starts and ends the other processes on request (control.go).
func newInitCommand() *cobra.Command {
	var bwrap string
	cmd := &cobra.Command{Use: "init", SilenceUsage: true, RunE: func(*cobra.Command, []string) error {
		ready := os.NewFile(3, "ready")
		listener, err := prepare(bwrap)
		if err != nil {
			fmt.Fprint(ready, err)
			return err
		}
		fmt.Fprint(ready, "ready")
		ready.Close()
		return serveControl(listener)
	}}
	cmd.Flags().StringVar(&bwrap, "bwrap", "bwrap", "path of bubblewrap")
	return cmd
}

func prepare(bwrap string) (net.Listener, error) {
	syscall.CloseOnExec(3)
	if err := ownProc(); err != nil {
		return nil, err
	}
	if err := setUpNetwork(); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	// Try it once now: a node that can't start containers says so only in
	// the events of every pod.
	check := exec.Command(bwrap, "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "/bin/true")
	if out, err := check.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("bubblewrap: %v: %s", err, strings.TrimSpace(string(out)))
	}
	// The working directory is the cluster's folder; a relative path keeps
	// the address below the 108 bytes of a Unix socket however deep that is.
	_ = os.Remove("control.sock")
	return net.Listen("unix", "control.sock")
}

// ownProc gives a process that is the first of a PID namespace a /proc of it.
func ownProc() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("user namespaces: mounting /proc: %w", err)
	}
	return nil
}
