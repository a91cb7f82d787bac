package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
)

// newSuperviseCommand runs one cluster from its first to its last moment.
//
// Everything of a cluster lives in one set of namespaces (user, network, PID,
// mount) whose first process is `localnode init`. When that one ends, in
// whatever way, the kernel kills the rest and drops network and mounts: that
// is what makes "nothing is left behind" true without any bookkeeping.
//
// This process stays outside, watches the owner's lifeline (standard input)
// and removes the folder when asked to.
func newSuperviseCommand() *cobra.Command {
	var dir, bwrap string
	var lifeline, remove bool
	cmd := &cobra.Command{Use: "supervise", SilenceUsage: true, RunE: func(*cobra.Command, []string) error {
		return supervise(dir, bwrap, lifeline, remove)
	}}
	cmd.Flags().StringVar(&dir, "dir", "", "the cluster's folder")
	cmd.Flags().StringVar(&bwrap, "bwrap", "bwrap", "path of bubblewrap")
	cmd.Flags().BoolVar(&lifeline, "lifeline", false, "end when standard input is closed")
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the folder at the end")
	return cmd
}

func supervise(dir, bwrap string, lifeline, remove bool) error {
	// A parent-death signal follows the thread that started the process:
	// keep that thread for as long as this function runs.
	goruntime.LockOSThread()
	ready, told, err := os.Pipe()
	if err != nil {
		return err
	}
	first := exec.Command("/proc/self/exe", "init", "--bwrap", bwrap)
	first.Dir = dir
	first.ExtraFiles = []*os.File{told}
	first.Stderr = os.Stderr
	first.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
		Setsid:      true,
	}
	if err := first.Start(); err != nil {
		return fmt.Errorf("user namespaces: %w", err)
	}
	told.Close()
	network, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", first.Process.Pid))
	if err != nil {
		return err
	}

	ended := make(chan struct{})
	go func() {
		_ = first.Wait()
		close(ended)
	}()
	cut := make(chan os.Signal, 2)
	signal.Notify(cut, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	if lifeline {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cut <- syscall.SIGTERM
		}()
	}
	if word, _ := io.ReadAll(ready); string(word) == "ready" {
		_ = json.NewEncoder(os.Stdout).Encode(map[string]int{"pid": first.Process.Pid})
		os.Stdout.Close()
		select {
		case <-cut:
		case <-ended:
		}
	} else {
		err = fmt.Errorf("%s", word)
	}
	_ = first.Process.Kill()
	<-ended
	killIn(network)
	if remove {
		_ = os.RemoveAll(dir)
	}
	return err
}

// killIn kills the processes that were sent into a network namespace from
// outside (with nsenter): they are not below the cluster's first process.
func killIn(network string) {
	links, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, link := range links {
		if its, _ := os.Readlink(link); its == network {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link)))); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}
