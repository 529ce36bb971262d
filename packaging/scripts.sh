# What the packages do beside putting files in their places; dist writes each function into a script of its own.
# Sourced by nobody else. `systemctl` is asked only where systemd runs.

after_install() {
    systemd-sysusers yolofs.conf nicfetch.conf
    # Before the service starts, which is not confined by one that is not loaded.
    if [ -d /sys/kernel/security/apparmor ] && command -v apparmor_parser >/dev/null; then
        apparmor_parser --replace /etc/apparmor.d/yolofs-nicfetch || true
    fi
    # Without it the programs make the directories when they need them.
    systemd-tmpfiles --create yolofs.conf || true
    if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
}

# Programs that run go on with what they were started from: mounts and their readers do not notice.
after_upgrade() {
    after_install
    if [ -d /run/systemd/system ]; then systemctl try-restart sandboxd || true; fi
    if [ -d /run/systemd/system ] && systemctl --quiet is-active yolofs-node; then
        systemctl restart yolofs-node && yolofs upgrade || echo "yolofs: run 'yolofs upgrade' for the mounts to use this version" >&2
    fi
}

# Engines first: one that is told of a snapshotter which is gone pulls nothing.
before_remove() {
    if [ -e /etc/yolofs/setup.json ]; then
        yolofs setup --undo && echo "yolofs: restart containerd and Docker, which were told of it" >&2
    fi
    # Without the daemon nobody could end what runs in sandboxes.
    for id in $(sandbox ps 2>/dev/null | awk '/ (running|paused) /{ print $1 }'); do sandbox kill "$id" || true; done
    if [ -d /run/systemd/system ]; then
        systemctl disable --now yolofs-docker yolofs-snapshotter yolofs-prewarm yolofs-pin nicfetch sandboxd yolofs-textfile.timer || true
        # Mounts of units of their own.
        systemctl disable yolofs@.service || true
        systemctl stop 'yolofs@*.service' || true
        yolofs node drain || true
        systemctl disable --now yolofs-node.socket yolofs-node || true
    fi
}

after_remove() {
    if [ -w /sys/kernel/security/apparmor/.remove ]; then
        printf yolofs-nicfetch >/sys/kernel/security/apparmor/.remove 2>/dev/null || true
    fi
    if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
}

# All that was recorded goes; not while something is mounted there, which would be removed with it.
after_purge() {
    if grep -q ' /var/lib/yolofs/' /proc/self/mounts; then
        echo "yolofs: something is mounted in /var/lib/yolofs, which stays" >&2
    else
        rm -rf --one-file-system /var/lib/yolofs
    fi
    rm -rf --one-file-system /run/yolofs /run/sandbox /var/lib/sandbox
    rm -f /etc/yolofs/setup.json
    if [ -d /etc/yolofs ]; then rmdir --ignore-fail-on-non-empty /etc/yolofs; fi
}
