//! Layers of images as they are on Docker Hub and elsewhere, classified from their histories.

use tiering::hif::{Class, MadeLayer, Step, classify};
use tiering::lass::Placement;

use Class::{Application, Base, Engine, Meta, SystemDependency, Unknown};

const fn layer(created_by: &str) -> Step<'_> {
    let layer = MadeLayer::Yes;
    Step { created_by, layer }
}

const fn setting(created_by: &str) -> Step<'_> {
    let layer = MadeLayer::No;
    Step { created_by, layer }
}

fn classes(history: &[Step], command: &str) -> Vec<Class> {
    let made = history.iter().filter(|step| step.layer == MadeLayer::Yes);
    let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    classify(history, made.count(), &command)
}

#[test]
fn an_interpreter_as_docker_official_images_build_it() {
    let history = [
        layer("# debian.sh --arch 'amd64' out/ 'bookworm' '@1749513600'"),
        layer(
            "RUN /bin/sh -c set -eux; apt-get update; apt-get install -y --no-install-recommends \
             ca-certificates netbase tzdata ; rm -rf /var/lib/apt/lists/* # buildkit",
        ),
        setting("ENV PYTHON_VERSION=3.13.5"),
        layer(
            "RUN /bin/sh -c set -eux; wget -O python.tar.xz \
             \"https://www.python.org/ftp/python/${PYTHON_VERSION%%[a-z]*}/Python-$PYTHON_VERSION.tar.xz\"; \
             ./configure; make -j 4; make install # buildkit",
        ),
        layer(
            "RUN /bin/sh -c set -eux; for src in idle3 pip3; do ln -svT \"$src\" \"$dst\"; done # buildkit",
        ),
        setting("CMD [\"python3\"]"),
    ];
    let found = classes(&history, "python3");
    // Its own `make install` says application, which goes to the same place.
    assert_eq!(found[..2], [Base, SystemDependency]);
    assert_eq!(found[2].place(), Placement::Fast);
    assert_eq!(found[3], Meta);
}

#[test]
fn a_server_from_packages_with_its_entry_point() {
    let history = [
        layer("/bin/sh -c #(nop) ADD file:5d673d25da3a14ce1f6cf in / "),
        setting("/bin/sh -c #(nop)  CMD [\"bash\"]"),
        setting("/bin/sh -c #(nop)  ENV NGINX_VERSION=1.25.3"),
        layer(
            "/bin/sh -c apt-get install -y gnupg1 ca-certificates && apt-get install -y nginx=1.25.3",
        ),
        layer("/bin/sh -c #(nop) COPY file:7b307b62e82255f040c9 in / "),
        layer("/bin/sh -c ln -sf /dev/stdout /var/log/nginx/access.log"),
    ];
    let found = classes(&history, "/entry.sh /usr/sbin/nginx -g");
    assert_eq!(found, [Base, Application, Application, Meta]);
    // Without the command it is a package like others.
    assert_eq!(classes(&history, "")[1], SystemDependency);
}

#[test]
fn an_application_on_an_engine_of_packages() {
    let history = [
        layer("/bin/sh -c #(nop) ADD file:1 in / "),
        layer("RUN /bin/sh -c apk add --no-cache openjdk17-jre # buildkit"),
        layer("COPY --from=build /src/target/app.jar /app.jar # buildkit"),
        layer("RUN /bin/sh -c addgroup -S app && adduser -S app -G app # buildkit"),
    ];
    assert_eq!(classes(&history, "java"), [Base, Engine, Application, Meta]);
}

#[test]
fn what_builds_an_application_is_one_whatever_else_the_line_does() {
    for (line, want) in [
        (
            "RUN /bin/sh -c apt-get update && apt-get install -y gcc && pip install -r requirements.txt # buildkit",
            Application,
        ),
        (
            "RUN /bin/sh -c python3 -m pip install --no-cache-dir flask # buildkit",
            Application,
        ),
        (
            "RUN |1 NODE_ENV=production /bin/sh -c npm ci --omit=dev # buildkit",
            Application,
        ),
        (
            "RUN /bin/sh -c CGO_ENABLED=0 go build -o /app . # buildkit",
            Application,
        ),
        ("RUN /bin/sh -c bundle install # buildkit", Application),
        (
            "RUN /bin/sh -c apt-get install -y python3 python3-venv # buildkit",
            Engine,
        ),
        ("RUN /bin/sh -c dnf install -y nodejs20 # buildkit", Engine),
        (
            "RUN /bin/sh -c apt-get install -y libpython3-dev libssl-dev # buildkit",
            SystemDependency,
        ),
        (
            "RUN /bin/sh -c apk add --no-cache tzdata # buildkit",
            SystemDependency,
        ),
        (
            "RUN /bin/sh -c mkdir /data && chown 999 /data # buildkit",
            Meta,
        ),
        (
            "COPY --from=golang:1.22 /usr/local/go /usr/local/go # buildkit",
            Engine,
        ),
        (
            "COPY docker-entrypoint.sh /usr/local/bin/ # buildkit",
            Application,
        ),
        ("bazel build ...", Application),
    ] {
        let history = [layer("ADD rootfs.tar.gz / # buildkit"), layer(line)];
        assert_eq!(classes(&history, ""), [Base, want], "{line}");
    }
}

#[test]
fn where_history_does_not_tell_of_each_layer_nothing_is_known() {
    let squashed = [layer("/bin/sh -c #(nop) ADD file:1 in / "), setting("CMD")];
    assert_eq!(classify(&squashed, 3, &[]), [Unknown; 3]);
    assert_eq!(classify(&[], 2, &[]), [Unknown; 2]);
    assert_eq!(classes(&[layer(""), layer("???")], ""), [Unknown; 2]);
    assert_eq!(Unknown.place(), Placement::Slow);
}

#[test]
fn no_line_is_too_odd() {
    let odd = [
        "|",
        "| /bin/",
        "RUN",
        "RUN |",
        "/bin/sh -c",
        "/bin/sh -c #(nop)",
        "COPY",
        "ADD  ",
        "#",
        "/bin/sh -c ;;&&||",
        "/bin/sh -c apt-get install",
        "RUN /bin/sh -c python3 -m # buildkit",
        "/bin/sh -c \u{1F600} c ",
        "é",
    ];
    for line in odd {
        assert_eq!(classes(&[layer(line)], "é").len(), 1);
    }
}
