//! The verdict on a mount: for `yolofs status`, and a check of the doctor.

use std::fmt;

use node_api::mount_state::{MountState, PrewarmState};
use node_api::status::{BootStatus, MountStatus, ServedStatus};

use crate::finding::Finding;

/// Beyond this divergence a boot is another than the recorded one ([`ServedStatus`]), in thousandths.
const DIVERGED_PERMILLE: u64 = 200;
/// Fewer misses tell nothing: listing a directory causes some.
const FEW_MISSES: u64 = 16;

/// The verdict on a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountVerdict {
    /// Boots read what was recorded.
    AsRecorded,
    /// It has no boot image.
    NoImage,
    /// Its content is on the way into the page cache.
    Prewarming,
    /// Its content was not brought into the page cache.
    NotPrewarmed,
    /// The kernel evicted more than half of the injected pages.
    Evicted,
    /// Files changed since the recording.
    Stale,
    /// Boots read much that was not recorded.
    Diverged,
    /// It was read, and no read was a hit in its boot image.
    NeverHit,
    /// Reads met damaged data in the boot image.
    Damaged,
    /// It is not served.
    NotServed,
}

impl MountVerdict {
    /// Returns the verdict for a status; the worst problem comes first.
    #[must_use]
    pub fn of(mount: &MountStatus) -> Self {
        let served = match mount.state {
            MountState::Serving | MountState::Leaving | MountState::Unknown => &mount.served,
            MountState::Starting | MountState::Restarting => return Self::Prewarming,
            MountState::Failed | MountState::Dead | MountState::NotAnswering => {
                return Self::NotServed;
            }
        };
        match &mount.boot {
            None => Self::NoImage,
            Some(boot) => Self::of_boot(boot, served.as_ref()),
        }
    }

    fn of_boot(boot: &BootStatus, served: Option<&ServedStatus>) -> Self {
        let divergence = served.map_or(0, |served| served.divergence_permille);
        let misses = served.map_or(0, |served| served.misses);
        let hits = served.map_or(0, |served| served.hits);
        if boot.damaged > 0 {
            return Self::Damaged;
        }
        let unused = hits == 0 && boot.injected_pages == 0;
        if unused && misses > FEW_MISSES && boot.prewarm != PrewarmState::Running {
            return Self::NeverHit;
        }
        if boot.stale_files > 0 {
            return Self::Stale;
        }
        if misses > FEW_MISSES && divergence > DIVERGED_PERMILLE {
            return Self::Diverged;
        }
        match boot.prewarm {
            PrewarmState::Waiting | PrewarmState::Running => Self::Prewarming,
            PrewarmState::Failed | PrewarmState::Cancelled => Self::NotPrewarmed,
            _ if boot.evicted_pages * 2 > boot.injected_pages => Self::Evicted,
            _ => Self::AsRecorded,
        }
    }

    /// Returns whether the user should act.
    #[must_use]
    pub const fn is_trouble(self) -> bool {
        !matches!(self, Self::AsRecorded | Self::NoImage | Self::Prewarming)
    }
}

impl fmt::Display for MountVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AsRecorded => "as recorded",
            Self::NoImage => "no boot image",
            Self::Prewarming => "prewarming",
            Self::NotPrewarmed => "not prewarmed: see its log",
            Self::Evicted => "evicted: prewarm again",
            Self::Stale => "stale: record again",
            Self::Diverged => "boots differ: record again",
            Self::NeverHit => "never hit: another source?",
            Self::Damaged => "damaged: bootimg verify",
            Self::NotServed => "not served: yolofs umount",
        })
    }
}

/// Checks the mounts of this machine.
#[must_use]
pub fn check(mounts: &[MountStatus]) -> Vec<Finding> {
    const CHECK: &str = "mounts";
    let troubles = mounts.iter().filter_map(|mount| {
        let verdict = MountVerdict::of(mount);
        verdict.is_trouble().then(|| finding(CHECK, mount, verdict))
    });
    let mut findings: Vec<_> = troubles.collect();
    if findings.is_empty() {
        let number = mounts.len();
        findings.push(Finding::fine(
            CHECK,
            format!("{number} mounts, none in trouble"),
        ));
    }
    findings
}

fn finding(check: &'static str, mount: &MountStatus, verdict: MountVerdict) -> Finding {
    let at = mount.mountpoint.display();
    let boot = mount.boot.as_ref();
    let image = boot.map_or("none", |boot| boot.image.as_str());
    let source = mount.source.display();
    match verdict {
        MountVerdict::NotServed => Finding::fault(
            check,
            format!("{at} is {}: nobody answers its readers", mount.state),
            format!("yolofs umount {at}, then mount it again"),
        ),
        MountVerdict::Damaged => Finding::fault(
            check,
            format!("{at}: {image} is damaged; its source is read instead"),
            format!("bootimg verify {image}; record it again, and look at the disk of the store"),
        ),
        MountVerdict::NeverHit => Finding::advice(
            check,
            format!("{at}: boots read from it, and the boot image {image} had none of that"),
            format!("is it of this source? bootimg verify {image} --against {source}"),
        ),
        MountVerdict::Evicted => Finding::advice(
            check,
            format!("{at}: the kernel dropped most of what was injected"),
            format!("bootimg prewarm {image} shortly before boots, or mount it with --lock"),
        ),
        MountVerdict::NotPrewarmed => Finding::advice(
            check,
            format!("{at}: {image} was not brought into memory"),
            format!("bootimg prewarm {image}"),
        ),
        _ => Finding::advice(
            check,
            format!("{at}: {verdict} ({image})"),
            format!("bootimg record {source} --name {image} -- COMMAND"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use node_api::mount_state::MountMode;

    use super::*;

    fn mount(boot: BootStatus, served: ServedStatus) -> MountStatus {
        MountStatus {
            id: "1ab2".to_owned(),
            mountpoint: "/mnt".into(),
            source: "/srv".into(),
            source_inode: None,
            mode: MountMode::Lower,
            state: MountState::Serving,
            pid: Some(7),
            boot: Some(boot),
            served: Some(served),
            nic: None,
            image: None,
            warnings: Vec::new(),
        }
    }

    fn warm() -> BootStatus {
        BootStatus {
            image: "web".to_owned(),
            files: 10,
            blocks: 100,
            injected_pages: 100,
            prewarm: PrewarmState::Done,
            ..BootStatus::default()
        }
    }

    fn read(misses: u64, divergence_permille: u64) -> ServedStatus {
        ServedStatus {
            misses,
            divergence_permille,
            ..ServedStatus::default()
        }
    }

    #[test]
    fn each_trouble_has_its_verdict() {
        let of = |boot, served| MountVerdict::of(&mount(boot, served));
        assert_eq!(of(warm(), read(2, 900)), MountVerdict::AsRecorded);
        assert_eq!(of(warm(), read(40, 900)), MountVerdict::Diverged);
        let stale = BootStatus {
            stale_files: 1,
            ..warm()
        };
        assert_eq!(of(stale, read(0, 0)), MountVerdict::Stale);
        let evicted = BootStatus {
            evicted_pages: 51,
            ..warm()
        };
        assert_eq!(of(evicted, read(0, 0)), MountVerdict::Evicted);
        let cold = BootStatus {
            injected_pages: 0,
            ..warm()
        };
        assert_eq!(of(cold.clone(), read(40, 100)), MountVerdict::NeverHit);
        assert_eq!(of(cold, read(4, 100)), MountVerdict::AsRecorded);
        let damaged = BootStatus {
            damaged: 1,
            stale_files: 3,
            ..warm()
        };
        assert_eq!(of(damaged, read(0, 0)), MountVerdict::Damaged);
        let failed = BootStatus {
            prewarm: PrewarmState::Failed,
            ..warm()
        };
        assert_eq!(of(failed, read(0, 0)), MountVerdict::NotPrewarmed);
        let mut dead = mount(warm(), read(0, 0));
        dead.state = MountState::Dead;
        assert_eq!(MountVerdict::of(&dead), MountVerdict::NotServed);
        let mut plain = mount(warm(), read(40, 900));
        plain.boot = None;
        assert_eq!(MountVerdict::of(&plain), MountVerdict::NoImage);
    }

    #[test]
    fn findings_name_the_mount_and_a_command() {
        let stale = BootStatus {
            stale_files: 1,
            ..warm()
        };
        let found = check(&[mount(warm(), read(0, 0)), mount(stale, read(0, 0))]);
        let [finding] = &found[..] else {
            panic!("{found:?}");
        };
        assert!(finding.what.starts_with("/mnt: stale"), "{}", finding.what);
        assert!(
            finding
                .cure
                .as_ref()
                .unwrap()
                .contains("bootimg record /srv --name web")
        );
        assert_eq!(check(&[]).len(), 1);
    }
}
