package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	rt "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type container struct {
	id, sandbox string
	cfg         *rt.ContainerConfig
	image       *image
	status      *rt.ContainerStatus
	pid         int // of the first process, as this node sees it
	done        chan struct{}
}

func (r *runtime) CreateContainer(_ context.Context, sb string, cfg *rt.ContainerConfig, scfg *rt.PodSandboxConfig) (string, error) {
	// The name that the user wrote decides, if it is known: two images may
	// have equal content and then share a digest, which is the kubelet's id.
	img, err := r.images.find(cfg.Image.UserSpecifiedImage)
	if img == nil && err == nil {
		img, err = r.images.find(cfg.Image.Image)
	}
	if err != nil {
		return "", err
	}
	if img == nil {
		return "", notFound("image " + cfg.Image.Image)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &container{id: r.newID("c"), sandbox: sb, cfg: cfg, image: img, done: make(chan struct{})}
	log := os.DevNull
	if cfg.LogPath != "" {
		log = filepath.Join(scfg.LogDirectory, cfg.LogPath)
	}
	c.status = &rt.ContainerStatus{Id: c.id, Metadata: cfg.Metadata, State: rt.ContainerState_CONTAINER_CREATED, CreatedAt: time.Now().UnixNano(),
		Image: &rt.ImageSpec{Image: img.Name, UserSpecifiedImage: cfg.Image.UserSpecifiedImage}, ImageRef: img.ref(), ImageId: img.Digest,
		Labels: cfg.Labels, Annotations: cfg.Annotations, Mounts: cfg.Mounts, LogPath: log}
	r.containers[c.id] = c
	return c.id, nil
}

func (r *runtime) StartContainer(_ context.Context, id string) error {
	r.mu.Lock()
	c := r.containers[id]
	if c == nil || r.sandboxes[c.sandbox] == nil {
		r.mu.Unlock()
		return notFound(id)
	}
	s := r.sandboxes[c.sandbox]
	r.mu.Unlock()
	args, err := bwrapArgs(c.cfg, c.image, s.cfg.Hostname, s.resolvConf)
	if err != nil {
		return err
	}
	logs, err := newLogs(c.status.LogPath)
	if err != nil {
		return err
	}
	infoRead, infoWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	defer infoRead.Close()
	cmd := exec.Command(r.bwrap, args...)
	cmd.ExtraFiles = []*os.File{infoWrite}
	stdout, stderr := logs.stream("stdout"), logs.stream("stderr")
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err = s.network.do(cmd.Start)
	infoWrite.Close()
	stdout.Close()
	stderr.Close()
	if err != nil {
		return err
	}
	var info struct {
		PID int `json:"child-pid"`
	}
	// An error means that bubblewrap ended at once; its words are in the log.
	_ = json.NewDecoder(infoRead).Decode(&info)
	r.mu.Lock()
	c.pid, c.status.State, c.status.StartedAt = info.PID, rt.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	r.mu.Unlock()
	go r.await(c, cmd, logs)
	return nil
}

func (r *runtime) await(c *container, cmd *exec.Cmd, logs *logs) {
	_ = cmd.Wait()
	logs.close()
	code := cmd.ProcessState.ExitCode()
	if code < 0 {
		code = 128 + int(cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
	}
	r.mu.Lock()
	c.status.State, c.status.FinishedAt, c.status.ExitCode, c.status.Reason = rt.ContainerState_CONTAINER_EXITED, time.Now().UnixNano(), int32(code), "Completed"
	if code != 0 {
		c.status.Reason = "Error"
	}
	r.mu.Unlock()
	close(c.done)
}

func (r *runtime) StopContainer(_ context.Context, id string, timeout int64) error {
	r.mu.Lock()
	c := r.containers[id]
	running := c != nil && c.status.State == rt.ContainerState_CONTAINER_RUNNING
	r.mu.Unlock()
	if !running || c.pid == 0 {
		return nil
	}
	if timeout > 0 {
		_ = syscall.Kill(c.pid, syscall.SIGTERM)
		select {
		case <-c.done:
			return nil
		case <-time.After(time.Duration(timeout) * time.Second):
		}
	}
	_ = syscall.Kill(c.pid, syscall.SIGKILL)
	<-c.done
	return nil
}

func (r *runtime) RemoveContainer(ctx context.Context, id string) error {
	_ = r.StopContainer(ctx, id, 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil && c.status.LogPath != os.DevNull {
		os.Remove(c.status.LogPath)
	}
	delete(r.containers, id)
	return nil
}

func (r *runtime) ListContainers(_ context.Context, f *rt.ContainerFilter) (out []*rt.Container, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if f != nil && (f.Id != "" && f.Id != c.id || f.PodSandboxId != "" && f.PodSandboxId != c.sandbox ||
			f.State != nil && f.State.State != c.status.State || !matches(f.LabelSelector, c.cfg.Labels)) {
			continue
		}
		out = append(out, &rt.Container{Id: c.id, PodSandboxId: c.sandbox, Metadata: c.cfg.Metadata, Image: c.status.Image, ImageRef: c.status.ImageRef,
			ImageId: c.status.ImageId, State: c.status.State, CreatedAt: c.status.CreatedAt, Labels: c.cfg.Labels, Annotations: c.cfg.Annotations})
	}
	return
}

func (r *runtime) ContainerStatus(_ context.Context, id string, _ bool) (*rt.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, notFound(id)
	}
	// field by field: a protobuf message must not be copied
	st := c.status
	return &rt.ContainerStatusResponse{Status: &rt.ContainerStatus{Id: st.Id, Metadata: st.Metadata, State: st.State, CreatedAt: st.CreatedAt,
		StartedAt: st.StartedAt, FinishedAt: st.FinishedAt, ExitCode: st.ExitCode, Reason: st.Reason, Image: st.Image, ImageRef: st.ImageRef,
		ImageId: st.ImageId, Labels: st.Labels, Annotations: st.Annotations, Mounts: st.Mounts, LogPath: st.LogPath}}, nil
}

// logs writes a container's output in the CRI's log format.
type logs struct {
	mu      sync.Mutex
	file    *os.File
	readers sync.WaitGroup
}

func newLogs(path string) (*logs, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	return &logs{file: file}, err
}

// stream returns the writing end of a pipe for one of the two streams.
func (l *logs) stream(name string) *os.File {
	read, write, err := os.Pipe()
	if err != nil {
		return nil
	}
	l.readers.Go(func() {
		defer read.Close()
		in := bufio.NewReaderSize(read, 16<<10)
		for {
			line, err := in.ReadSlice('\n')
			if len(line) > 0 {
				tag := "F"
				if line[len(line)-1] != '\n' {
					tag, line = "P", append(line, '\n')
				}
				l.mu.Lock()
				fmt.Fprintf(l.file, "%s %s %s %s", time.Now().UTC().Format(time.RFC3339Nano), name, tag, line)
				l.mu.Unlock()
			}
			if err != nil && err != bufio.ErrBufferFull {
				return
			}
		}
	})
	return write
}

// close waits for the ends of both streams.
func (l *logs) close() {
	l.readers.Wait()
	l.file.Close()
}
