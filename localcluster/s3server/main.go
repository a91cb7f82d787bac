// Command s3server is a small S3 server over a folder, for the demo and the
// tests: versitygw used as a library.
//
// Credentials come from S3_ACCESS_KEY and S3_SECRET_KEY, so that they are not
// seen in a process list. "listening ADDRESS" is printed once requests are
// accepted.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	log.SetFlags(0)
	root := flag.String("root", "", "folder that keeps the objects (its file system must know user.* extended attributes)")
	listen := flag.String("listen", "127.0.0.1:9000", "address to listen on")
	region := flag.String("region", "us-east-1", "region to sign requests for")
	lifeline := flag.Bool("exit-on-stdin-eof", false, "end when standard input is closed, so that the server never outlives its owner")
	scratch := flag.String("scratch", "", "folder to remove when standard input is closed: what a killed owner cannot remove any more")
	flag.Parse()
	if *lifeline {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			if *scratch != "" {
				os.RemoveAll(*scratch)
			}
			// Nothing is lost by ending at once: every answered upload is
			// already renamed into place.
			os.Exit(0)
		}()
	}
	if err := run(*root, *listen, *region); err != nil {
		log.Fatalf("s3server: %v", err)
	}
}

func run(root, listen, region string) error {
	access, secret := os.Getenv("S3_ACCESS_KEY"), os.Getenv("S3_SECRET_KEY")
	if root == "" || access == "" || secret == "" {
		return fmt.Errorf("--root, S3_ACCESS_KEY and S3_SECRET_KEY must all be given")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	folder, err := posix.New(root, meta.XattrMeta{}, posix.PosixOpts{}) // also changes into root
	if err != nil {
		return err
	}
	go announce(listen)
	return embedgw.RunVersityGW(ctx, guarded{folder}, &embedgw.Config{
		RootUserAccess: access, RootUserSecret: secret, Region: region, Ports: []string{listen}, Quiet: true,
		MaxConnections: 1000, MaxRequests: 500, MultipartMaxParts: 10000,
	})
}

// announce tells the parent that the server accepts connections: the library
// has no hook for it.
func announce(listen string) {
	for {
		c, err := net.Dial("tcp", listen)
		if err == nil {
			c.Close()
			fmt.Println("listening " + listen)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
