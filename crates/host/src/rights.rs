//! Finds which capability is missing, for errors that only say "permission denied".

use std::io;

use nix::errno::Errno;
use nix::unistd::geteuid;

/// What mounting, and reading the files of others, takes: the bit of each capability, and its name.
const NEEDED: [(u32, &str); 3] = [
    (21, "CAP_SYS_ADMIN"),
    (1, "CAP_DAC_OVERRIDE"),
    (2, "CAP_DAC_READ_SEARCH"),
];

/// Returns which capability is missing, if "permission denied" is among the causes of an error.
#[must_use]
pub fn missing_for(error: &anyhow::Error) -> Option<String> {
    let refused = error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        let errno = cause.downcast_ref::<Errno>();
        io.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
            || matches!(errno, Some(Errno::EPERM | Errno::EACCES))
            // As clients of engines say it, of which the text is all there is.
            || cause.to_string().contains("permission denied while trying to connect")
    });
    refused.then(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let uid = geteuid();
        missing(uid.is_root(), uid.as_raw(), effective(&status))
    })
}

/// Reads the effective capabilities from `/proc/self/status` (proc_pid_status(5)).
fn effective(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn missing(is_root: bool, uid: u32, capabilities: Option<u64>) -> String {
    let has = |bit: u32| capabilities.is_none_or(|set| set >> bit & 1 == 1);
    let lacking: Vec<_> = NEEDED
        .iter()
        .filter(|(bit, _)| !has(*bit))
        .map(|(_, name)| *name)
        .collect();
    match (is_root, lacking.is_empty()) {
        (false, false) => format!("this takes root, and you are user {uid}: use sudo"),
        (true, false) => format!(
            "you are root without {}: in a container, add these capabilities; a command gives them up itself before it \
             reads what others made (YOLOFS_CONFINE=off shows whether that is why)",
            lacking.join(", ")
        ),
        (_, true) => "you have all capabilities that this takes: a security module (AppArmor, \
                      SELinux), an immutable file or a file system's option forbids it"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn it_is_said_what_is_missing() {
        assert_eq!(
            effective("Name:\tx\nCapEff:\t000001ffffffffff\n"),
            Some(0x1ff_ffff_ffff)
        );
        let user = missing(false, 1000, Some(0));
        assert_eq!(user, "this takes root, and you are user 1000: use sudo");
        let weak = missing(true, 0, Some(!(1 << 21)));
        assert!(weak.contains("root without CAP_SYS_ADMIN:"), "{weak}");
        assert!(missing(true, 0, Some(u64::MAX)).contains("security module"));
    }

    #[test]
    fn only_refusals_have_it() {
        let refused = Err::<(), _>(io::Error::from(io::ErrorKind::PermissionDenied));
        let refused = refused.context("opening the store").unwrap_err();
        assert!(missing_for(&refused).is_some());
        assert!(missing_for(&anyhow::Error::from(Errno::EPERM)).is_some());
        let docker = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock";
        assert!(missing_for(&anyhow::anyhow!(docker)).is_some());
        assert!(missing_for(&anyhow::Error::from(Errno::ENOENT)).is_none());
    }
}
