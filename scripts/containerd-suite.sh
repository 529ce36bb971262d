#!/usr/bin/env bash
# Runs containerd's own test-suite for snapshotters, of the version that is named (v2.4.2; v1.6.20 is Debian 12's),
# against `yolofs snapshotter`. Needs Go and its module proxy; by hand, not in CI.
source "$(dirname "$0")/need.sh"
VERSION=${1:-v2.4.2}
go=$(new_go 26 1.26.8)
case $VERSION in
v1.*) go_mod=github.com/containerd/containerd api=$go_mod/api snapshots=$go_mod/snapshots testutil=$go_mod/pkg/testutil ;;
*) go_mod=github.com/containerd/containerd/v2 api=github.com/containerd/containerd/api snapshots=$go_mod/core/snapshots testutil=$go_mod/pkg/testutil ;;
esac
yolofs=${YOLOFS:-$REPO/target/debug/yolofs}
[ -x "$yolofs" ] || die "build it first: cargo build -p cli ($yolofs is missing)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/go.mod" <<MOD
module suite

go 1.24

require $go_mod $VERSION
MOD
sed -e "s,API,$api,; s,SNAPSHOTS,$snapshots,; s,TESTUTIL,$testutil," >"$work/suite_test.go" <<'GO'
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

	snapshotsapi "API/services/snapshots/v1"
	_ "TESTUTIL"
	"SNAPSHOTS"
	"SNAPSHOTS/proxy"
	"SNAPSHOTS/testsuite"
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
	// By this name the suite knows that overlayfs renames no directory of a lower layer.
	testsuite.SnapshotterSuite(t, "overlayfs", start)
}
GO
cd "$work"
"$go" mod tidy >"$work/tidy" 2>&1 || die "the modules cannot be had: $(tail -3 "$work/tidy")"
YOLOFS=$yolofs timeout 600 "$go" test -count=1 -v -parallel "${PARALLEL:-4}" ./... -args -test.root |
    grep -E '^ *--- |^(ok|FAIL|PASS|panic)' || die "the suite failed"
