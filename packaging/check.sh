#!/usr/bin/env bash
# Lets systemd check the units, against programs that exist only for the check.
source "$(dirname "$0")/../scripts/need.sh"
need apparmor_parser=apparmor systemd-analyze=systemd containerd=containerd jq=jq promtool=prometheus curl=curl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/usr/bin" "$work/usr/lib/yolofs"
install -m 755 "$REPO/packaging/prometheus/yolofs-textfile" "$work/usr/lib/yolofs"
install -m 755 /bin/true "$work/usr/bin/bootimg"
install -m 755 /bin/true "$work/usr/bin/yolofs"
install -m 755 /bin/true "$work/usr/bin/nicfetch"
install -m 755 /bin/true "$work/usr/bin/sandbox"
cp "$REPO"/packaging/*.socket "$REPO"/packaging/prometheus/*.timer "$work"
# Debian's systemd is older than one setting, and ignores it.
newer=
[ "$(systemd-analyze --version | sed -n '1s/systemd \([0-9]*\).*/\1/p')" -ge 254 ] || newer=/^FileDescriptorStorePreserve=/d
for unit in "$REPO"/packaging/*.service "$REPO"/packaging/docker/*.service "$REPO"/packaging/containerd/*.service "$REPO"/packaging/prometheus/*.service; do
    sed -E -e "s,/usr/(bin/(bootimg|yolofs|nicfetch|sandbox)|lib/yolofs),$work&," -e "$newer" "$unit" >"$work/$(basename "$unit")"
done
cp "$work/yolofs@.service" "$work/yolofs@web.service"
# Docker's own unit, as far as the drop-in needs one.
printf '[Service]\nExecStart=/bin/true\n' >"$work/docker.service"
mkdir "$work/docker.service.d"
sed "s,/usr/bin/yolofs,$work&," "$REPO/packaging/docker/docker-clear.conf" >"$work/docker.service.d/yolofs.conf"
said=$(cd "$work" && systemd-analyze verify --man=no --recursive-errors=no ./yolofs-prewarm.service ./yolofs@web.service ./yolofs-node.service ./yolofs-node.socket ./yolofs-pin.service ./yolofs-docker.service ./yolofs-snapshotter.service ./nicfetch.service ./sandboxd.service ./yolofs-textfile.service ./yolofs-textfile.timer ./docker.service 2>&1) ||
    die "systemd does not like the units: $said"
# It warns without failing about what it does not know.
[ -z "$said" ] || die "systemd warns about the units: $said"
# How much a service may that was broken into, by systemd's own count: 0 is nothing, 10 everything.
# Lower than this takes a mount namespace of its own, or no root.
for exposed in yolofs-node=6.0 yolofs-docker=6.0 yolofs-snapshotter=6.0 yolofs-pin=2.5 nicfetch=1.7 sandboxd=6.6; do
    unit=$work/${exposed%=*}.service
    said=$(systemd-analyze security --offline=true --no-pager "$unit") || true
    level=$(sed -n 's/.*Overall exposure level for [^:]*: \([0-9.]*\).*/\1/p' <<<"$said")
    [ -n "$level" ] || die "systemd does not say how exposed $unit is: $said"
    awk -v is="$level" -v most="${exposed#*=}" 'BEGIN { exit !(is <= most) }' ||
        die "$unit is exposed at $level, more than ${exposed#*=}"
done
# A namespace of its own would hide its mounts from the engines, and what is mounted later from sandboxes.
namespaced='^(Private[A-Za-z]*|Protect[A-Za-z]*|ProcSubset|[A-Za-z]*Paths|TemporaryFileSystem|MountAPIVFS|Root[A-Z][A-Za-z]*|DynamicUser)='
for unit in yolofs-node yolofs-docker yolofs-snapshotter sandboxd; do
    said=$(grep -E "$namespaced" "$work/$unit.service" | grep -vE '=(no|false|off|0)?$') && die "$unit would mount in a namespace of its own: $said"
done
# With it systemd denies openat2(2) (ENOSYS), because it cannot look at its flags, and no source can be opened then.
! grep -l '^RestrictSUIDSGID=' "$work"/*.service || die "these units deny openat2(2)"
say "the services are exposed no more than they need to be"

systemd-sysusers --dry-run "$REPO"/packaging/*.sysusers >/dev/null ||
    die "systemd does not like the users"
say "systemd accepts the units and the users"

# Whether the kernel has AppArmor or not: nothing is loaded.
PATH=$PATH:/usr/sbin apparmor_parser --skip-kernel-load --skip-cache "$REPO/packaging/apparmor/yolofs-nicfetch" ||
    die "AppArmor does not understand the profile"
say "AppArmor understands the profile"

# containerd 2 has another format, which Debian's containerd cannot check.
dump=$(containerd --config "$REPO/packaging/containerd/config.toml" config dump 2>&1) ||
    die "containerd does not like its configuration: $dump"
[ "$(grep -c 'snapshotter = "yolofs"\|address = "/run/yolofs/snapshotter.sock"' <<<"$dump")" = 2 ] ||
    die "containerd does not see the snapshotter in its configuration"
jq -e '."storage-driver" == "yolofs"' "$REPO/packaging/containerd/docker-daemon.json" >/dev/null ||
    die "Docker's configuration is no JSON, or names no snapshotter"
say "containerd accepts its configuration"

# With the defaults in the places of the expressions the chart is what the manifests are, line by line. (kubernetes/check.sh
# has Helm render it, where there is one.)
kubernetes=$REPO/packaging/kubernetes
rendered() {
    sed -e '/^{{-.*}}$/d' -e 's/{{ \.Release\.Namespace }}/yolofs/' -e 's/{{ \.Values\.image | quote }}/yolofs/' \
        -e 's/{{ \.Values\.kubectlImage | quote }}/kubectl/' \
        -e 's/{{ ternary "--runtime-class" "" \.Values\.runtimeClassOnly | quote }}/--runtime-class/' \
        -e 's,{{- toYaml \.Values\.nodeSelector | nindent 8 }},kubernetes.io/os: linux,' \
        -e 's/{{- toYaml \.Values\.tolerations | nindent 8 }}/- operator: Exists/' "$kubernetes/chart/templates/$1"
}
templates=$(cd "$kubernetes/chart/templates" && ls)
[ "$(sort <<<"$templates
kustomization.yaml
namespace.yaml
uninstall.yaml")" = "$(cd "$kubernetes" && ls -- *.yaml)" ] || die "chart and manifests have different files"
for file in $templates; do
    said=$(diff <(grep -v '^#' "$kubernetes/$file") <(rendered "$file")) || die "the chart's $file is not that of the manifests: $said"
done
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$REPO/Cargo.toml" | head -1)
said=$(grep -v '^#' "$kubernetes/chart/values.yaml" | tr -s '\n ' ' ')
[ "$said" = "image: registry.example.invalid/yolofs:$version kubectlImage: registry.example.invalid/kubectl:1.34 \
runtimeClassOnly: true nodeSelector: kubernetes.io/os: linux tolerations: - operator: Exists " ] ||
    die "the chart has other defaults than the manifests: $said"
grep -q "^ *newTag: $version$" "$kubernetes/kustomization.yaml" && grep -qx "version: $version" "$kubernetes/chart/Chart.yaml" &&
    grep -qx "appVersion: $version" "$kubernetes/chart/Chart.yaml" || die "chart or manifests are of another version than $version"
for text in "$kubernetes/kustomization.yaml" "$REPO/docs/install.md"; do
    grep -qF "kustomize edit set image yolofs=REGISTRY/yolofs:$version kubectl=REGISTRY/kubectl:1.34" "$text" ||
        die "$text does not say how the images are set: by the names that the manifests have"
done
say "the chart says what the manifests say"

# Dashboard and alerts ask only for metrics that there are, and the dashboard shows every one.
dashboard=$REPO/packaging/grafana/yolofs.json
rules=$REPO/packaging/prometheus/yolofs.rules.yml
jq -e '.panels | map(.id) | length == (unique | length)' "$dashboard" >/dev/null ||
    die "the dashboard is no JSON, or two panels have one id"
metrics() { grep -o 'yolofs_[a-z_]*' | sort -u; }
known=$(grep -o '^| `yolofs_[a-z_]*`' "$REPO/docs/observability.md" | metrics)
shown=$(jq -r '.panels[].targets[]?.expr, (.templating.list[].query | .query? // empty)' "$dashboard" | metrics)
alerted=$(grep -E '^ *expr:' "$rules" | metrics)
[ "$(wc -l <<<"$alerted")" -gt 5 ] || die "no metrics found in $rules"
unknown=$(comm -13 <(echo "$known") <(printf '%s\n' "$shown" "$alerted" | sort -u))
[ -z "$unknown" ] || die "there are no such metrics: $unknown"
hidden=$(comm -23 <(echo "$known") <(echo "$shown"))
[ -z "$hidden" ] || die "the dashboard does not show: $hidden"
say "dashboard and alerts know the metrics"

said=$(promtool check rules "$rules" 2>&1) || die "Prometheus does not like the alerts: $said"
said=$(cd "$(dirname "$rules")" && promtool test rules yolofs.rules.test.yml 2>&1) ||
    die "the alerts do not say what they should: $said"
say "the alerts fire for the host that is meant"
