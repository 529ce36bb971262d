//! Which fields of a specification are honoured, by name; a field that is not listed is never skipped.
//!
//! Deserializing into types alone would skip unknown fields. So the JSON is walked before that, and a path
//! that is not listed here means that `runc` gets the specification.

use serde_json::Value;

/// All honoured fields. `[]` is any element of a list, `*` any key of a map. A field that is honoured for
/// some values only is checked by the translation.
pub const HONOURED: &[&str] = &[
    "annotations.*",
    "domainname",
    "hooks.createRuntime[].args[]",
    "hooks.createRuntime[].env[]",
    "hooks.createRuntime[].path",
    "hooks.createRuntime[].timeout",
    "hooks.poststart[].args[]",
    "hooks.poststart[].env[]",
    "hooks.poststart[].path",
    "hooks.poststart[].timeout",
    "hooks.poststop[].args[]",
    "hooks.poststop[].env[]",
    "hooks.poststop[].path",
    "hooks.poststop[].timeout",
    "hooks.prestart[].args[]",
    "hooks.prestart[].env[]",
    "hooks.prestart[].path",
    "hooks.prestart[].timeout",
    "hostname",
    "linux.cgroupsPath",
    "linux.devices[].fileMode",
    "linux.devices[].gid",
    "linux.devices[].major",
    "linux.devices[].minor",
    "linux.devices[].path",
    "linux.devices[].type",
    "linux.devices[].uid",
    "linux.maskedPaths[]",
    "linux.namespaces[].path",
    "linux.namespaces[].type",
    "linux.readonlyPaths[]",
    "linux.resources.blockIO.weight",
    "linux.resources.cpu.cpus",
    "linux.resources.cpu.mems",
    "linux.resources.cpu.period",
    "linux.resources.cpu.quota",
    "linux.resources.cpu.shares",
    "linux.resources.devices[].access",
    "linux.resources.devices[].allow",
    "linux.resources.devices[].major",
    "linux.resources.devices[].minor",
    "linux.resources.devices[].type",
    "linux.resources.memory.disableOOMKiller",
    "linux.resources.memory.limit",
    "linux.resources.memory.reservation",
    "linux.resources.memory.swap",
    "linux.resources.pids.limit",
    "linux.rootfsPropagation",
    "linux.seccomp.architectures[]",
    "linux.seccomp.defaultAction",
    "linux.seccomp.defaultErrnoRet",
    "linux.seccomp.syscalls[].action",
    "linux.seccomp.syscalls[].args[].index",
    "linux.seccomp.syscalls[].args[].op",
    "linux.seccomp.syscalls[].args[].value",
    "linux.seccomp.syscalls[].args[].valueTwo",
    "linux.seccomp.syscalls[].errnoRet",
    "linux.seccomp.syscalls[].names[]",
    "linux.sysctl.*",
    "mounts[].destination",
    "mounts[].options[]",
    "mounts[].source",
    "mounts[].type",
    "ociVersion",
    "process.args[]",
    "process.capabilities.ambient[]",
    "process.capabilities.bounding[]",
    "process.capabilities.effective[]",
    "process.capabilities.inheritable[]",
    "process.capabilities.permitted[]",
    "process.consoleSize.height",
    "process.consoleSize.width",
    "process.cwd",
    "process.env[]",
    "process.noNewPrivileges",
    "process.oomScoreAdj",
    "process.rlimits[].hard",
    "process.rlimits[].soft",
    "process.rlimits[].type",
    "process.terminal",
    "process.user.additionalGids[]",
    "process.user.gid",
    "process.user.uid",
    "process.user.umask",
    "root.path",
    "root.readonly",
];

/// Returns the paths of a specification that are not honoured, in order. `null` is as good as absent.
pub fn unhonoured(specification: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(specification, "", "", &mut found);
    found
}

/// As [`unhonoured`], for the part of a specification at `below`, such as `process`.
pub fn unhonoured_below(below: &str, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(value, below, below, &mut found);
    found
}

/// Walks a value: `pattern` is what is looked up, `path` is what messages show.
fn walk(value: &Value, pattern: &str, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Null => {}
        Value::Object(fields) if pattern.is_empty() || is_inside(pattern, '.') => {
            for (name, value) in fields {
                // A name with a dot is no field of ours, and must not look like two.
                let plain = !name.contains(['.', '[', '*']);
                let any = joined(pattern, "*");
                let pattern = match HONOURED.contains(&any.as_str()) {
                    true => any,
                    false if plain => joined(pattern, name),
                    false => "?".to_owned(),
                };
                walk(value, &pattern, &joined(path, name), found);
            }
        }
        Value::Array(elements) if is_inside(pattern, '[') => {
            for (index, element) in elements.iter().enumerate() {
                let path = format!("{path}[{index}]");
                walk(element, &format!("{pattern}[]"), &path, found);
            }
        }
        Value::Object(_) | Value::Array(_) => found.push(path.to_owned()),
        _ if HONOURED.contains(&pattern) => {}
        _ => found.push(path.to_owned()),
    }
}

fn joined(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

/// Returns whether something honoured lies below `pattern`, behind `separator`.
fn is_inside(pattern: &str, separator: char) -> bool {
    HONOURED.iter().any(|honoured| {
        let rest = honoured.strip_prefix(pattern);
        rest.is_some_and(|rest| rest.starts_with(separator))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_listed_is_found_wherever_it_is() {
        let specification = json!({
            "ociVersion": "1.2.0",
            "process": {"args": ["a"], "ioPriority": {"class": "x"}, "scheduler": null},
            "annotations": {"a.b": "c", "d": {"nested": 1}},
            "mounts": [{"destination": "/a"}, {"uidMappings": []}],
            "linux.namespaces": [],
            "hooks": [],
        });
        let mut found = unhonoured(&specification);
        found.sort();
        let expected = [
            "annotations.d",
            "hooks",
            "linux.namespaces",
            "mounts[1].uidMappings",
            "process.ioPriority",
        ];
        assert_eq!(found, expected);
    }
}
