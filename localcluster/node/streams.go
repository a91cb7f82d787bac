package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	rt "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// execCommand prepares a command inside a running container.
func (r *runtime) execCommand(ctx context.Context, id string, argv []string) (*exec.Cmd, error) {
	r.mu.Lock()
	c := r.containers[id]
	running := c != nil && c.status.State == rt.ContainerState_CONTAINER_RUNNING
	r.mu.Unlock()
	if !running {
		return nil, notFound(id)
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", c.pid))
	if err != nil {
		return nil, err
	}
	args := []string{"-t", strconv.Itoa(c.pid), "-m", "-p", "-i", "-u", "-n", "--wd=/proc/" + strconv.Itoa(c.pid) + "/cwd", "--"}
	x := exec.CommandContext(ctx, "nsenter", append(args, argv...)...)
	x.Env = strings.Split(strings.TrimRight(string(env), "\x00"), "\x00")
	// nsenter forks (a process can't change its own PID namespace): end its
	// child too when the call is cancelled.
	x.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	x.Cancel = func() error { return syscall.Kill(-x.Process.Pid, syscall.SIGKILL) }
	return x, nil
}

func exitCode(err error) error {
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return utilexec.CodeExitError{Err: err, Code: ended.ExitCode()}
	}
	return err
}

func (r *runtime) ExecSync(ctx context.Context, id string, argv []string, timeout time.Duration) ([]byte, []byte, error) {
	if timeout > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	x, err := r.execCommand(ctx, id, argv)
	if err != nil {
		return nil, nil, err
	}
	var stdout, stderr strings.Builder
	x.Stdout, x.Stderr = &stdout, &stderr
	err = x.Run()
	if ctx.Err() != nil {
		return nil, nil, status.Error(codes.DeadlineExceeded, "exec timed out")
	}
	return []byte(stdout.String()), []byte(stderr.String()), exitCode(err)
}

func (r *runtime) Exec(_ context.Context, req *rt.ExecRequest) (*rt.ExecResponse, error) {
	return r.stream.GetExec(req)
}

func (r *runtime) PortForward(_ context.Context, req *rt.PortForwardRequest) (*rt.PortForwardResponse, error) {
	return r.stream.GetPortForward(req)
}

func (r *runtime) Attach(context.Context, *rt.AttachRequest) (*rt.AttachResponse, error) {
	return nil, errors.New("attach is not supported by this cluster's runtime: use kubectl logs -f or kubectl exec")
}

// streams serves kubectl exec and port-forward.
type streams struct{ r *runtime }

func (s streams) Exec(ctx context.Context, id string, argv []string, in io.Reader, out, errOut io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	x, err := s.r.execCommand(ctx, id, argv)
	if err != nil {
		return err
	}
	if in != nil {
		// Not x.Stdin: Run would wait for the end of the input, which a
		// client keeps open until it has seen the end of the command.
		pipe, err := x.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(pipe, in)
			pipe.Close()
		}()
	}
	x.Stdout, x.Stderr = out, errOut
	if errOut == nil {
		x.Stderr = out
	}
	return exitCode(x.Run())
}

func (streams) Attach(context.Context, string, io.Reader, io.WriteCloser, io.WriteCloser, bool, <-chan remotecommand.TerminalSize) error {
	return errors.New("attach is not supported")
}

func (s streams) PortForward(_ context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	s.r.mu.Lock()
	sandbox := s.r.sandboxes[id]
	s.r.mu.Unlock()
	if sandbox == nil {
		return notFound(id)
	}
	// From within the pod, so that a server on its 127.0.0.1 is reached too.
	var c net.Conn
	err := sandbox.network.do(func() (err error) {
		c, err = dialInThread("127.0.0.1", int(port))
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	go func() {
		_, _ = io.Copy(c, stream)
		if half, ok := c.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	_, err = io.Copy(stream, c)
	return err
}

// dialInThread connects on this very thread: net.Dial may try addresses on
// other goroutines, which are not in the pod's network namespace.
func dialInThread(ip string, port int) (net.Conn, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "forward")
	defer file.Close()
	address := &syscall.SockaddrInet4{Port: port}
	copy(address.Addr[:], net.ParseIP(ip).To4())
	if err := syscall.Connect(fd, address); err != nil {
		return nil, fmt.Errorf("connecting to port %d of the pod: %w", port, err)
	}
	return net.FileConn(file)
}
