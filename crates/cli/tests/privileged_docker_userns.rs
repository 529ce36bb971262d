//! A Docker whose containers have users of their own (`userns-remap`).

#![cfg(feature = "privileged")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use lab::engines::Engines;
use lab::{Lab, busybox_root, fails, ok};

/// Docker wants ranges of users in /etc, so it runs in a mount namespace with an /etc of its own;
/// yolofs with it, for Docker must see its mounts.
const SCRIPT: &str = r#"
set -eu
mkdir upper work
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$PWD/upper,workdir=$PWD/work" /etc
echo daemon:100000:65536 > /etc/subuid
echo daemon:100000:65536 > /etc/subgid
export DOCKER_HOST="unix://$PWD/sock"
"$DOCKERD" --data-root "$PWD/docker" --exec-root "$PWD/exec" -H "$DOCKER_HOST" --pidfile "$PWD/pid" \
    --storage-driver=overlay2 --iptables=false --ip6tables=false --bridge=none \
    --userns-remap=daemon $FLAGS > log 2>&1 &
dockerd=$!
end() {
    code=$?
    "$YOLOFS" docker detach --all > /dev/null || true
    kill "$dockerd" && wait "$dockerd" || true
    [ "$code" = 0 ] || tail -n 20 log >&2
    exit "$code"
}
trap end EXIT
tries=600
until docker info > /dev/null 2>&1; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] && kill -0 "$dockerd"
    sleep 0.1
done
docker import base.tar base > /dev/null
layer=$(docker image inspect base --format '{{index .RootFS.Layers 0}}')
dir=$(docker image inspect base --format '{{.GraphDriver.Data.UpperDir}}')
look='id -u; ls -ln /usr/lib /etc; cat /usr/lib/part* | md5sum; cat /proc/self/uid_map
      echo new > /etc/config; rm /usr/lib/part03; cat /etc/config'
docker run --rm --network=none base sh -c "$look" > before
"$BOOTIMG" record --no-chroot --name "$layer" "$dir" -- sh -c 'cat "$YOLOFS_MNT"/usr/lib/*' > /dev/null
"$YOLOFS" docker attach base > /dev/null
grep -q "$dir fuse.yolofs" /proc/self/mounts
docker run --rm --network=none base sh -c "$look" > after
# Docker makes these for each container: the two may be of two minutes.
sed -i -E '/ (hostname|hosts|mtab|resolv.conf)( |$)/s/[A-Z][a-z]{2} +[0-9]+ [0-9:]+//' before after
diff before after
grep -q ' 100000 ' after
docker rmi base > /dev/null
! grep fuse.yolofs /proc/self/mounts | grep -F "$PWD"
"#;

#[test]
fn privileged_docker_serves_remapped_users() {
    serves_remapped_users(Engines::Debian, "");
}

#[test]
fn privileged_docker_29_serves_remapped_users() {
    serves_remapped_users(Engines::Today, "--feature containerd-snapshotter=false");
}

fn serves_remapped_users(engines: Engines, flags: &str) {
    let lab = Lab::new();
    let dir = lab.make_dir("remapped");
    let root = lab.path("base");
    busybox_root(&root);
    ok(Command::new("ln")
        .args(["-s", "busybox"])
        .arg(root.join("bin/id")));
    ok(Command::new("tar")
        .arg("-cf")
        .arg(dir.join("base.tar"))
        .args(["--owner=33", "--group=33", "-C"])
        .arg(&root)
        .arg("."));
    // Containers' root is nobody here, and has to come this far.
    ok(Command::new("chmod").arg("755").arg(lab.path("")).arg(&dir));
    let mut path = std::ffi::OsString::from("/usr/bin:");
    if engines == Engines::Today {
        path = std::ffi::OsString::new();
    }
    path.push(engines.path());
    let mut script = Command::new("unshare");
    script
        .args(["--mount", "--propagation", "private", "bash", "-c", SCRIPT])
        .current_dir(&dir)
        .env("PATH", path)
        .env("DOCKERD", engines.program("dockerd"))
        .env("FLAGS", flags)
        .env("YOLOFS", env!("CARGO_BIN_EXE_yolofs"))
        .env("BOOTIMG", env!("CARGO_BIN_EXE_bootimg"))
        .env("YOLOFS_STORE", lab.store())
        .env("YOLOFS_RUN_DIR", lab.run_dir());
    ok(&mut script);
}

/// What Docker's client says of a daemon without root. Rootless daemons need users and namespaces
/// that a test machine may not have, and nothing but this answer is looked at.
const ROOTLESS: &str = r#"#!/bin/sh
case " $* " in *" info "*) ;; *) exit 1 ;; esac
cat <<'END'
{"ServerVersion":"20.10.24","Driver":"overlay2","LiveRestoreEnabled":false,
 "DockerRootDir":"/home/me/.local/share/docker",
 "SecurityOptions":["name=seccomp,profile=default","name=rootless","name=cgroupns"]}
END
"#;

#[test]
fn privileged_docker_without_root_is_refused_in_words() {
    let lab = Lab::new();
    let client = lab.make_dir("bin").join("docker");
    fs::write(&client, ROOTLESS).unwrap();
    fs::set_permissions(&client, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", lab.path("bin").display());
    for (mut command, args) in [
        (lab.yolofs(), &["docker", "attach", "--all"][..]),
        (lab.yolofs(), &["docker", "status"]),
        (lab.bootimg(), &["record", "docker://app"]),
    ] {
        let why = fails(1, command.args(args).env("PATH", &path));
        assert!(why.contains("this Docker is rootless"), "{args:?}: {why}");
        assert!(why.contains("namespace"), "{args:?}: {why}");
    }
}
