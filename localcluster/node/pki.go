package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
)

// newPKICommand writes what the control plane needs below a folder: ca.crt,
// ca.key, api.crt, api.key and sa.key, sa.pub for ServiceAccount tokens.
func newPKICommand() *cobra.Command {
	var dir string
	var names []string
	var addresses []net.IP
	cmd := &cobra.Command{Use: "pki", SilenceUsage: true, RunE: func(*cobra.Command, []string) error {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		authority, err := newAuthority()
		if err != nil {
			return err
		}
		if err := authority.write(dir); err != nil {
			return err
		}
		cert, key, err := authority.issue(&x509.Certificate{
			Subject: pkix.Name{CommonName: "kube-apiserver"}, DNSNames: names, IPAddresses: addresses,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		})
		if err != nil {
			return err
		}
		signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		private, public, err := encodeKey(signer)
		if err != nil {
			return err
		}
		return writeFiles(dir, map[string][]byte{"api.crt": cert, "api.key": key, "sa.key": private, "sa.pub": public})
	}}
	cmd.Flags().StringVar(&dir, "dir", "", "folder to write to")
	cmd.Flags().StringSliceVar(&names, "names", nil, "DNS names of the API server")
	cmd.Flags().IPSliceVar(&addresses, "addresses", nil, "addresses of the API server")
	return cmd
}

// authority signs the certificates of one cluster.
type authority struct {
	cert *x509.Certificate
	der  []byte
	key  *ecdsa.PrivateKey
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := withDates(&x509.Certificate{
		Subject: pkix.Name{CommonName: "localcluster"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert: cert, der: der, key: key}, err
}

// readAuthority reads what write has written.
func readAuthority(dir string) (*authority, error) {
	var blocks [2]*pem.Block
	for i, name := range []string{"ca.crt", "ca.key"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if blocks[i], _ = pem.Decode(text); blocks[i] == nil {
			return nil, fmt.Errorf("%s/%s is not PEM", dir, name)
		}
	}
	cert, err := x509.ParseCertificate(blocks[0].Bytes)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParseECPrivateKey(blocks[1].Bytes)
	return &authority{cert: cert, der: blocks[0].Bytes, key: key}, err
}

func (a *authority) write(dir string) error {
	private, _, err := encodeKey(a.key)
	if err != nil {
		return err
	}
	return writeFiles(dir, map[string][]byte{"ca.crt": a.pem(), "ca.key": private})
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.der})
}

// issue fills in serial number, dates and key usage and signs.
func (a *authority) issue(template *x509.Certificate) (cert, key []byte, err error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, withDates(template), a.cert, own.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	key, _, err = encodeKey(own)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, err
}

func withDates(c *x509.Certificate) *x509.Certificate {
	c.SerialNumber, _ = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	// tests move clocks: leave room on both sides
	c.NotBefore, c.NotAfter = time.Now().AddDate(-1, 0, 0), time.Now().AddDate(10, 0, 0)
	return c
}

func encodeKey(key *ecdsa.PrivateKey) (private, public []byte, err error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub}), err
}

func writeFiles(dir string, files map[string][]byte) error {
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
