package main

import (
	"context"
	"io"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"
)

// full reads a request body and fails at its end when fewer than the promised
// bytes arrived.
type full struct {
	body    io.Reader
	missing int64
}

func (f *full) Read(p []byte) (int, error) {
	n, err := f.body.Read(p)
	f.missing -= int64(n)
	if err == io.EOF && f.missing > 0 {
		return n, s3err.GetAPIError(s3err.ErrIncompleteBody)
	}
	return n, err
}

// guarded refuses uploads that are shorter than their Content-Length.
//
// versitygw 1.8.0 takes the end of a dropped connection for the end of the
// object and publishes what it got. Amazon S3 answers IncompleteBody and keeps
// the old object, and a store that publishes engines must be tested on that.
type guarded struct{ backend.Backend }

func (g guarded) PutObject(ctx context.Context, in s3response.PutObjectInput) (s3response.PutObjectOutput, error) {
	if in.ContentLength != nil && in.Body != nil {
		in.Body = &full{in.Body, *in.ContentLength}
	}
	return g.Backend.PutObject(ctx, in)
}

func (g guarded) UploadPart(ctx context.Context, in *s3.UploadPartInput) (*s3.UploadPartOutput, error) {
	if in.ContentLength != nil && in.Body != nil {
		in.Body = &full{in.Body, *in.ContentLength}
	}
	return g.Backend.UploadPart(ctx, in)
}
