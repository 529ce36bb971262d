#!/usr/bin/env bash
# Runs containerd's own test-suite for snapshotters against `yolofs snapshotter`. Needs Go and its
# module proxy; by hand, not in CI.
source "$(dirname "$0")/need.sh"
need go=golang
VERSION=v1.6.20 # Debian 12's
yolofs=${YOLOFS:-$REPO/target/debug/yolofs}
[ -x "$yolofs" ] || die "build it first: cargo build -p cli ($yolofs is missing)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/go.mod" <<MOD
module suite

go 1.19

require github.com/containerd/containerd $VERSION
MOD
cat >"$work/suite_test.go" <<'GO'
package suite

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	_ "github.com/containerd/containerd/pkg/testutil"
	"github.com/containerd/containerd/snapshots"
	"github.com/containerd/containerd/snapshots/proxy"
	"github.com/containerd/containerd/snapshots/testsuite"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// start runs a snapshotter of its own for each test.
func start(ctx context.Context, root string) (snapshots.Snapshotter, func() error, error) {
	socket := filepath.Join(root, "socket")
	process := exec.Command(os.Getenv("YOLOFS"), "--store", filepath.Join(root, "store"),
		"snapshotter", "--root", filepath.Join(root, "root"), "--address", socket)
	process.Stderr = os.Stderr
	if err := process.Start(); err != nil {
		return nil, nil, err
	}
	stop := func() error {
		if err := process.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		return process.Wait()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			break
		} else if time.Now().After(deadline) {
			return nil, nil, errors.Join(err, stop())
		}
	}
	conn, err := grpc.Dial("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	return proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), "yolofs"), stop, nil
}

func TestYolofs(t *testing.T) {
	testsuite.SnapshotterSuite(t, "yolofs", start)
}
GO
cd "$work"
go mod tidy >"$work/tidy" 2>&1 || die "the modules cannot be had: $(tail -3 "$work/tidy")"
YOLOFS=$yolofs timeout 600 go test -count=1 -v -parallel "${PARALLEL:-4}" ./... -args -test.root |
    grep -E '^ *--- |^(ok|FAIL|PASS|panic)' || die "the suite failed"
