#!/bin/sh
# Brings yolofs to the node of this pod, and takes it away again: on-node.sh install|wait|remove.
#
# It is a package and a systemd unit of the host, not a process of the pod: if the pod that serves the layers of
# containers were restarted, every container on the node would lose its files.
set -eu
host() { nsenter --target 1 --mount --uts --ipc --net -- "$@"; }
setup() { host yolofs setup kubernetes ${YOLOFS_SETUP:-} "$@"; }
case "$1" in
install)
    host mkdir -p /var/lib/yolofs-package
    cat /package/yolofs.deb | host sh -c 'cat >/var/lib/yolofs-package/yolofs.deb'
    host sh -c 'dpkg --install /var/lib/yolofs-package/yolofs.deb'
    # Only what is not as it should be is written, and containerd restarted only then. A setup that fails ends this.
    plan=$(setup --json)
    changed=$(printf '%s' "$plan" | grep -c '"after"' || true)
    host systemctl enable --now yolofs-node.socket yolofs-node yolofs-snapshotter
    if [ "$changed" -gt 0 ]; then
        setup --yes
    fi
    # Or if that was done before, and interrupted here.
    if [ "$changed" -gt 0 ] || host yolofs doctor --json | grep -q containerd-restart; then
        host systemctl restart containerd
    fi
    ;;
wait)
    # The pod is ready, and its label says so, while the node has no fault.
    host yolofs doctor >/dev/null
    ;;
remove)
    host yolofs setup --undo
    host systemctl restart containerd
    host dpkg --remove yolofs
    host rm -rf /var/lib/yolofs-package
    ;;
*)
    echo "on-node.sh: install, wait or remove" >&2
    exit 2
    ;;
esac
