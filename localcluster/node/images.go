package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	rt "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// image is what an image name stands for: not a file system but an
// environment (a PATH with a certain virtual environment first) over the
// machine's own files. Two images are two real versions of a runtime.
type image struct {
	Name       string            `json:"-"`
	Digest     string            `json:"digest"` // sha256:...
	Env        map[string]string `json:"env"`
	Entrypoint []string          `json:"entrypoint"`
	Binds      []string          `json:"binds"` // folders that containers see read-only although their place is hidden
}

func (i *image) ref() string { return i.Name + "@" + i.Digest }

// images is the kubelet's image service over the image map, a JSON file that
// is read anew at every question: it is small, and a change must be seen at once.
type images struct{ path string }

func (s images) read() (map[string]*image, error) {
	text, err := os.ReadFile(s.path)
	if err != nil {
		return nil, fmt.Errorf("image map: %w", err)
	}
	all := map[string]*image{}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("image map %s: %w", s.path, err)
	}
	for name, i := range all {
		i.Name = name
	}
	return all, nil
}

// find returns nil without an error when the map does not have the image.
// A reference is a name, name@digest, name:tag@digest, or a bare digest (which
// the kubelet takes for the image's id).
func (s images) find(reference string) (*image, error) {
	all, err := s.read()
	if err != nil {
		return nil, err
	}
	name, digest, pinned := strings.Cut(reference, "@")
	if strings.HasPrefix(reference, "sha256:") {
		name, digest, pinned = "", reference, true
	}
	names := make([]string, 0, len(all))
	for n := range all {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		i := all[n]
		sameName := name == "" || n == name || n == name+":latest" || n+":latest" == name || pinned && repository(n) == name
		if sameName && (!pinned || i.Digest == digest) {
			return i, nil
		}
	}
	return nil, nil
}

func repository(name string) string {
	if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
		return name[:colon]
	}
	return name
}

func (s images) describe(i *image, spec *rt.ImageSpec) *rt.Image {
	// Containers really run as the user who started the cluster, seen as
	// uid 0 in its user namespace. The image still says that its user is
	// 65532: else the kubelet refuses pods with runAsNonRoot.
	return &rt.Image{Id: i.Digest, RepoTags: []string{i.Name}, RepoDigests: []string{repository(i.Name) + "@" + i.Digest}, Size: 1, Spec: spec,
		Uid: &rt.Int64Value{Value: 65532}}
}

func (s images) ListImages(context.Context, *rt.ImageFilter) ([]*rt.Image, error) {
	all, err := s.read()
	var out []*rt.Image
	for _, i := range all {
		out = append(out, s.describe(i, &rt.ImageSpec{Image: i.Name}))
	}
	return out, err
}

func (s images) ImageStatus(_ context.Context, spec *rt.ImageSpec, _ bool) (*rt.ImageStatusResponse, error) {
	i, err := s.find(spec.Image)
	if i == nil || err != nil {
		return &rt.ImageStatusResponse{}, err
	}
	return &rt.ImageStatusResponse{Image: s.describe(i, spec)}, nil
}

func (s images) PullImage(_ context.Context, spec *rt.ImageSpec, _ *rt.AuthConfig, _ *rt.PodSandboxConfig) (string, error) {
	i, err := s.find(spec.Image)
	if err != nil {
		return "", err
	}
	if i == nil {
		hint := "add it with `python -m localcluster image add`"
		if name, digest, pinned := strings.Cut(spec.Image, "@"); pinned {
			if other, _ := s.find(name); other != nil {
				return "", status.Errorf(codes.NotFound, "image %s in this cluster's image map has digest %s, not %s: %s", other.Name, other.Digest, digest, hint)
			}
		}
		return "", status.Errorf(codes.NotFound, "image %s is not in this cluster's image map: %s", spec.Image, hint)
	}
	return i.Digest, nil
}

// Images take no room: the kubelet has nothing to collect.
func (images) RemoveImage(context.Context, *rt.ImageSpec) error { return nil }

func (images) ImageFsInfo(context.Context) (*rt.ImageFsInfoResponse, error) {
	return &rt.ImageFsInfoResponse{}, nil
}

func (images) Close(context.Context) error { return nil }
