package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// request is one line on the control socket; the answer is one line too.
type request struct {
	Op      string   `json:"op"` // start, end, signal, relay, status
	Name    string   `json:"name"`
	Argv    []string `json:"argv"`
	Env     []string `json:"env"`
	Log     string   `json:"log"`     // file that output is appended to
	Isolate bool     `json:"isolate"` // start: in PID and mount namespaces of its own, which die with it
	Signal  int      `json:"signal"`
	Grace   float64  `json:"grace"`   // end: seconds before SIGKILL
	Address string   `json:"address"` // relay: where to; the listening socket travels with the request
}

type answer struct {
	Error     string             `json:"error,omitempty"`
	Processes map[string]process `json:"processes,omitempty"`
}

type process struct {
	PID      int  `json:"pid"`
	Running  bool `json:"running"`
	ExitCode int  `json:"exit_code"`
	done     chan struct{}
}

type manager struct {
	mu        sync.Mutex
	processes map[string]*process
}

func serveControl(listener net.Listener) error {
	m := &manager{processes: map[string]*process{}}
	for {
		c, err := listener.Accept()
		if err != nil {
			return err
		}
		go m.converse(c.(*net.UnixConn))
	}
}

func (m *manager) converse(c *net.UnixConn) {
	defer c.Close()
	line, passed, err := readRequest(c)
	if err != nil {
		return
	}
	var req request
	var out answer
	if err = json.Unmarshal(line, &req); err == nil {
		out.Processes, err = m.do(req, passed)
	}
	if err != nil {
		out.Error = err.Error()
	}
	_ = json.NewEncoder(c).Encode(out)
}

// readRequest reads one line and the file that may travel with its first byte.
func readRequest(c *net.UnixConn) ([]byte, *os.File, error) {
	first, oob := make([]byte, 64<<10), make([]byte, syscall.CmsgSpace(4))
	n, oobn, _, _, err := c.ReadMsgUnix(first, oob)
	if err != nil {
		return nil, nil, err
	}
	var passed *os.File
	if messages, _ := syscall.ParseSocketControlMessage(oob[:oobn]); len(messages) > 0 {
		if fds, _ := syscall.ParseUnixRights(&messages[0]); len(fds) > 0 {
			syscall.CloseOnExec(fds[0])
			passed = os.NewFile(uintptr(fds[0]), "passed")
		}
	}
	if n > 0 && first[n-1] == '\n' {
		return first[:n], passed, nil
	}
	rest, err := bufio.NewReader(c).ReadBytes('\n')
	return append(first[:n], rest...), passed, err
}

func (m *manager) do(req request, passed *os.File) (map[string]process, error) {
	switch req.Op {
	case "start":
		return nil, m.start(req)
	case "end":
		return nil, m.end(req)
	case "signal":
		return nil, m.signal(req)
	case "relay":
		if passed == nil {
			return nil, errors.New("a relay needs a listening socket")
		}
		return nil, relay(passed, req.Address)
	case "status":
		return m.status(), nil
	}
	return nil, fmt.Errorf("unknown operation %q", req.Op)
}

func (m *manager) start(req request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.processes[req.Name]; p != nil && p.Running {
		return fmt.Errorf("%s is running already", req.Name)
	}
	log, err := os.OpenFile(req.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(req.Argv[0], req.Argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = req.Env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if req.Isolate {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &process{PID: cmd.Process.Pid, Running: true, done: make(chan struct{})}
	m.processes[req.Name] = p
	go func() {
		_ = cmd.Wait()
		m.mu.Lock()
		p.Running, p.ExitCode = false, cmd.ProcessState.ExitCode()
		m.mu.Unlock()
		close(p.done)
	}()
	return nil
}

func (m *manager) signal(req request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.processes[req.Name]
	if p == nil || !p.Running {
		return fmt.Errorf("%s is not running", req.Name)
	}
	return syscall.Kill(p.PID, syscall.Signal(req.Signal))
}

// end sends a signal and waits, at most Grace seconds before SIGKILL. It is
// not an error when the process has ended before.
func (m *manager) end(req request) error {
	m.mu.Lock()
	p := m.processes[req.Name]
	m.mu.Unlock()
	if p == nil || m.signal(req) != nil {
		return nil
	}
	select {
	case <-p.done:
	case <-time.After(time.Duration(req.Grace * float64(time.Second))):
		req.Signal = int(syscall.SIGKILL)
		_ = m.signal(req)
		<-p.done
	}
	return nil
}

func (m *manager) status() map[string]process {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]process{}
	for name, p := range m.processes {
		out[name] = *p
	}
	return out
}

// relay accepts connections on a socket that was opened outside of the
// cluster's network namespace and connects them to an address inside.
func relay(listening *os.File, address string) error {
	outside, err := net.FileListener(listening)
	listening.Close()
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := outside.Accept()
			if err != nil {
				return
			}
			go join(c, func() (net.Conn, error) { return net.DialTimeout("tcp", address, 5*time.Second) })
		}
	}()
	return nil
}

// join copies both ways until both ends have closed. A half-closed connection
// stays usable in the other direction, as through a router.
func join(a net.Conn, dial func() (net.Conn, error)) {
	defer a.Close()
	b, err := dial()
	if err != nil {
		return
	}
	defer b.Close()
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			_ = pair[0].(*net.TCPConn).CloseWrite()
		})
	}
	both.Wait()
}
