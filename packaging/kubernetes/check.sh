#!/usr/bin/env bash
# Renders the manifests and the chart, and compares them: both say the same. By hand: Debian has neither helm nor kustomize
# (go install helm.sh/helm/v3/cmd/helm@v3.17.0 sigs.k8s.io/kustomize/kustomize/v5@v5.5.0; kubectl has the latter, too).
source "$(dirname "$0")/../../scripts/need.sh"
cd "$REPO/packaging/kubernetes"
kustomize=(kustomize build)
command -v kustomize >/dev/null || kustomize=(kubectl kustomize)
for program in "${kustomize[0]}" helm python3; do command -v "$program" >/dev/null || die "$program is missing"; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${kustomize[@]}" . >"$work/kustomize.yaml"
helm lint --quiet --kube-version 1.34.0 chart || die "helm does not like the chart"
helm template --kube-version 1.34.0 yolofs chart --namespace yolofs >"$work/helm.yaml"
# Helm makes the namespace itself; all else is the same object by object.
python3 - "$work/kustomize.yaml" "$work/helm.yaml" <<'PY' || die "kustomize and Helm say different things"
import sys, yaml
def objects(path):
    found = {}
    for one in yaml.safe_load_all(open(path)):
        if one and one["kind"] != "Namespace":
            found[one["kind"], one["metadata"]["name"]] = one
    return found
a, b = map(objects, sys.argv[1:])
for key in sorted(set(a) | set(b)):
    if a.get(key) != b.get(key):
        print(key, a.get(key), b.get(key), sep="\n", file=sys.stderr)
        sys.exit(1)
print(f"{len(a)} objects are the same in both", file=sys.stderr)
PY
helm template --kube-version 1.34.0 yolofs chart --set runtimeClassOnly=false | grep -q RuntimeClass && die "a RuntimeClass that nobody wants"
sh -n on-node.sh
say "the manifests are as they should be"
