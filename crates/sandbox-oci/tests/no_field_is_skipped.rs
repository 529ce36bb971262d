//! Whatever is changed in a specification changes what is done, or has it refused.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use proptest::prelude::*;
use sandbox_oci::{OciError, Plan};
use serde_json::{Value, json};

/// As Docker writes it, with more in it.
fn specification() -> Value {
    json!({
        "ociVersion": "1.0.2-dev",
        "annotations": {"a": "b"},
        "process": {
            "user": {"uid": 1, "gid": 2, "umask": 18, "additionalGids": [3]},
            "args": ["sh", "-c"], "env": ["A=b"], "cwd": "/", "noNewPrivileges": true, "oomScoreAdj": 5,
            "terminal": false, "consoleSize": {"height": 24, "width": 80},
            "capabilities": {"bounding": ["CAP_CHOWN", "CAP_KILL"], "effective": ["CAP_CHOWN"],
                "permitted": ["CAP_CHOWN"], "inheritable": ["CAP_CHOWN"], "ambient": ["CAP_CHOWN"]},
            "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 100, "hard": 200}],
        },
        "root": {"path": "rootfs", "readonly": true},
        "hostname": "a", "domainname": "b",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec"]},
            {"destination": "/t", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755", "size=5k", "strictatime"]},
            {"destination": "/m", "type": "bind", "source": "/home", "options": ["rbind", "ro", "rslave"]},
        ],
        "hooks": {"prestart": [{"path": "/bin/a", "args": ["a"], "env": ["B=c"], "timeout": 3}],
            "poststop": [{"path": "/bin/b"}]},
        "linux": {
            "cgroupsPath": "/docker/a", "rootfsPropagation": "rprivate",
            "sysctl": {"net.ipv4.ip_forward": "1"},
            "devices": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "fileMode": 438, "uid": 4, "gid": 5}],
            "namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "network"}, {"type": "uts"}, {"type": "ipc", "path": "/p"}],
            "maskedPaths": ["/proc/keys"], "readonlyPaths": ["/proc/bus"],
            "resources": {
                "devices": [{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "major": 10, "minor": 200, "access": "rw"}],
                "memory": {"limit": 7, "swap": 9, "reservation": 4, "disableOOMKiller": false},
                "cpu": {"shares": 512, "quota": 50000, "period": 100000, "cpus": "0", "mems": "0"},
                "pids": {"limit": 20}, "blockIO": {"weight": 0},
            },
            "seccomp": {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 5, "architectures": ["SCMP_ARCH_X86"],
                "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"},
                    {"names": ["bpf"], "action": "SCMP_ACT_ERRNO", "errnoRet": 9},
                    {"names": ["personality"], "action": "SCMP_ACT_ALLOW",
                     "args": [{"index": 0, "value": 8, "valueTwo": 8, "op": "SCMP_CMP_MASKED_EQ"}]}]},
        },
    })
}

/// The pointers of all values, and of all objects.
fn pointers(value: &Value, at: &str, leaves: &mut Vec<String>, objects: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            objects.push(at.to_owned());
            for (name, value) in fields {
                pointers(value, &format!("{at}/{name}"), leaves, objects);
            }
        }
        Value::Array(elements) => {
            for (index, value) in elements.iter().enumerate() {
                pointers(value, &format!("{at}/{index}"), leaves, objects);
            }
        }
        _ => leaves.push(at.to_owned()),
    }
}

fn changed(value: &Value) -> Value {
    match value {
        Value::Bool(set) => (!set).into(),
        Value::Number(number) => (number.as_u64().unwrap() + 1).into(),
        Value::String(text) if text == "/home" || text.starts_with('/') => {
            format!("{text}x").into()
        }
        Value::String(text) => format!("{text}x").into(),
        other => panic!("{other}"),
    }
}

#[test]
fn each_value_matters() {
    let specification = specification();
    let plan = Plan::new(&specification).unwrap();
    let (mut leaves, mut objects) = (Vec::new(), Vec::new());
    pointers(&specification, "", &mut leaves, &mut objects);
    for pointer in leaves {
        let mut other = specification.clone();
        let place = other.pointer_mut(&pointer).unwrap();
        *place = changed(place);
        match Plan::new(&other) {
            Ok(other) => assert!(other != plan, "{pointer} is skipped"),
            Err(OciError::NotHonoured(reasons)) => assert!(!reasons.is_empty(), "{pointer}"),
            Err(other) => panic!("{pointer}: {other}"),
        }
    }
}

proptest! {
    #[test]
    fn a_field_that_nobody_knows_is_refused_wherever_it_is(
        which in any::<prop::sample::Index>(),
        name in "[a-zA-Z.*\\[\\]]{1,12}",
        value in prop_oneof![Just(json!(1)), Just(json!("x")), Just(json!([])), Just(json!({"a": 1}))],
    ) {
        let mut specification = specification();
        let (mut leaves, mut objects) = (Vec::new(), Vec::new());
        pointers(&specification, "", &mut leaves, &mut objects);
        // Keys of these are whatever people like.
        objects.retain(|at| at != "/annotations" && at != "/linux/sysctl");
        let at = which.get(&objects).clone();
        let object = specification.pointer_mut(&at).unwrap().as_object_mut().unwrap();
        let path = format!("{at}/{name}").trim_start_matches('/').replace('/', ".");
        let pattern: String = path.split('.').map(|part| match part.parse::<u32>() {
            Ok(_) => "[]".to_owned(),
            Err(_) => format!(".{part}"),
        }).collect();
        let known = sandbox_oci::honoured::HONOURED.iter().any(|known| known.starts_with(pattern.trim_start_matches('.')));
        prop_assume!(!known && !object.contains_key(&name));
        object.insert(name, value);
        prop_assert!(matches!(Plan::new(&specification), Err(OciError::NotHonoured(_))));
    }
}
