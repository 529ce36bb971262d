//! What the kernel of this machine offers.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::bounded;
use crate::finding::Finding;

/// The oldest kernel that works: Debian 12's. Older ones lack idle-time reads of what is cached.
const OLDEST: (u32, u32) = (6, 1);
/// From this kernel on, files of a disk image that are not in the boot image are passed through.
const PASSTHROUGH: (u32, u32) = (6, 9);
/// Where DAMON says what its daemons do.
const DAMON: &str = "sys/kernel/mm/damon/admin/kdamonds";

/// A machine, by the directory that has its `proc`, `sys` and `dev`.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

impl Default for Machine {
    fn default() -> Self {
        Self::at(Path::new("/"))
    }
}

impl Machine {
    /// Returns the machine whose file system has this root.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Returns the version of its kernel, as `uname -r` prints it.
    #[must_use]
    pub fn kernel(&self) -> String {
        let release = self.text("proc/sys/kernel/osrelease");
        release.trim().to_owned()
    }

    /// Checks the kernel, FUSE, overlayfs, and reclaim of pages.
    #[must_use]
    pub fn check(&self) -> Vec<Finding> {
        let mut findings = vec![self.kernel_version(), self.fuse(), self.overlay()];
        findings.push(self.reclaim());
        findings
    }

    fn text(&self, path: &str) -> String {
        let text = bounded::read(&self.root.join(path));
        text.ok().flatten().unwrap_or_default()
    }

    fn kernel_version(&self) -> Finding {
        const CHECK: &str = "kernel-version";
        let release = self.kernel();
        let Some(version) = version_of(&release) else {
            return Finding::advice(
                CHECK,
                format!("the kernel calls itself {release:?}, which is no version"),
                "make sure that it is Linux 6.1 or newer",
            );
        };
        if version < OLDEST {
            return Finding::fault(
                CHECK,
                format!("Linux {release} is too old: yolofs needs 6.1"),
                "install a newer kernel (Debian 11: linux-image-amd64 from bullseye-backports) and reboot",
            );
        }
        if version < PASSTHROUGH {
            return Finding::fine(
                CHECK,
                format!("Linux {release}; from 6.9 on, disk images are served faster"),
            );
        }
        Finding::fine(CHECK, format!("Linux {release}"))
    }

    fn fuse(&self) -> Finding {
        const CHECK: &str = "fuse";
        // The kernel loads its module when the device is opened, not before.
        let mut device = File::options();
        let device = device
            .read(true)
            .write(true)
            .open(self.root.join("dev/fuse"));
        match (self.knows("fuse"), device) {
            (true, Ok(_)) => Finding::fine(CHECK, "FUSE is there, and its device can be opened"),
            (false, _) => Finding::fault(
                CHECK,
                "the kernel does not have FUSE",
                "modprobe fuse, and add fuse to /etc/modules-load.d/yolofs.conf; in a container: \
                 load it on the host",
            ),
            (true, Err(error)) if error.kind() == io::ErrorKind::NotFound => Finding::fault(
                CHECK,
                "/dev/fuse is missing",
                "in a container: pass the device in (docker run --device /dev/fuse); else: mknod -m 666 \
                 /dev/fuse c 10 229",
            ),
            (true, Err(error)) => Finding::fault(
                CHECK,
                format!("/dev/fuse cannot be opened: {error}"),
                "in a container: allow the device (docker run --device /dev/fuse); else: run this as root, or \
                 chmod 666 /dev/fuse",
            ),
        }
    }

    fn overlay(&self) -> Finding {
        const CHECK: &str = "overlayfs";
        if self.knows("overlay") {
            return Finding::fine(CHECK, "overlayfs is there");
        }
        if self.is_module("fs/overlayfs/overlay.ko") {
            return Finding::fine(CHECK, "overlayfs is a module, which the first mount loads");
        }
        Finding::fault(
            CHECK,
            "the kernel does not have overlayfs, on which containers stand",
            "modprobe overlay, and add overlay to /etc/modules-load.d/yolofs.conf",
        )
    }

    /// Returns whether the kernel can load a module, which may be compressed.
    fn is_module(&self, file: &str) -> bool {
        let modules = self.root.join("lib/modules").join(self.kernel());
        let is_there = |end: &&str| modules.join(format!("kernel/{file}{end}")).exists();
        ["", ".xz", ".zst", ".gz"].iter().any(is_there)
    }

    fn knows(&self, file_system: &str) -> bool {
        let known = self.text("proc/filesystems");
        known
            .lines()
            .any(|line| line.split_whitespace().last() == Some(file_system))
    }

    /// Looks whether something takes unused pages away although there is memory: what was prewarmed is gone
    /// when the boot comes.
    fn reclaim(&self) -> Finding {
        const CHECK: &str = "page-reclaim";
        let daemons = self.damon_daemons();
        if daemons.is_empty() {
            return Finding::fine(CHECK, "nothing takes unused pages away");
        }
        Finding::advice(
            CHECK,
            format!(
                "DAMON takes pages away that are not used for a while (kdamond {}): what is \
                 prewarmed may be gone when the boot comes",
                daemons.join(", ")
            ),
            "turn it off (echo off > /sys/kernel/mm/damon/admin/kdamonds/0/state), limit it to \
             anonymous memory, or keep pages locked (yolofs mount --lock)",
        )
    }

    /// Returns the numbers of DAMON's daemons that run and page out.
    fn damon_daemons(&self) -> Vec<String> {
        let at = self.root.join(DAMON);
        let mut found: Vec<String> = names(&at)
            .into_iter()
            .filter(|daemon| self.text(&format!("{DAMON}/{daemon}/state")).trim() == "on")
            .filter(|daemon| pages_out(&at.join(daemon), 0))
            .collect();
        // The module of its own for that.
        if self
            .text("sys/module/damon_reclaim/parameters/enabled")
            .trim()
            == "Y"
        {
            found.push("damon_reclaim".to_owned());
        }
        found
    }
}

/// How deep an action lies below a daemon: `contexts/0/schemes/0/action`.
const DEPTH: usize = 5;

/// Returns whether a file called `action` below `dir` says that pages go.
fn pages_out(dir: &Path, depth: usize) -> bool {
    if depth > DEPTH {
        return false;
    }
    names(dir).into_iter().any(|name| {
        let path = dir.join(&name);
        if name == "action" {
            let action = bounded::read(&path).ok().flatten().unwrap_or_default();
            return matches!(action.trim(), "pageout" | "cold");
        }
        path.is_dir() && pages_out(&path, depth + 1)
    })
}

/// Returns the names in a directory; none if it cannot be read.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Returns the first two numbers of a version.
pub(crate) fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Verdict;

    /// A machine that has all that is needed.
    fn machine() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        put(&dir, "proc/sys/kernel/osrelease", "6.18.0-1-amd64\n");
        put(
            &dir,
            "proc/filesystems",
            "nodev\tfuse\n\text4\nnodev\toverlay\n",
        );
        put(&dir, "dev/fuse", "");
        dir
    }

    fn put(dir: &tempfile::TempDir, path: &str, text: &str) {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn verdict(dir: &tempfile::TempDir, check: &str) -> (Verdict, String) {
        let findings = Machine::at(dir.path()).check();
        let finding = findings.into_iter().find(|finding| finding.check == check);
        let finding = finding.unwrap();
        let cure = finding.cure.unwrap_or_default();
        (finding.verdict, format!("{}: {cure}", finding.what))
    }

    #[test]
    fn a_machine_that_has_all_is_fine() {
        let machine = machine();
        let findings = Machine::at(machine.path()).check();
        assert!(
            findings.iter().all(|f| f.verdict == Verdict::Fine),
            "{findings:?}"
        );
    }

    #[test]
    fn old_kernels_and_missing_parts_are_faults_with_a_cure() {
        let machine = machine();
        for (release, expected) in [
            ("5.10.0-28-amd64", Verdict::Fault),
            ("6.0.9", Verdict::Fault),
            ("6.1.0-13-amd64", Verdict::Fine),
            ("strange", Verdict::Advice),
        ] {
            put(&machine, "proc/sys/kernel/osrelease", release);
            assert_eq!(verdict(&machine, "kernel-version").0, expected, "{release}");
        }
        put(&machine, "proc/filesystems", "\text4\nnodev\tfusectl\n");
        let (found, said) = verdict(&machine, "fuse");
        assert_eq!(found, Verdict::Fault);
        assert!(said.contains("modprobe fuse"), "{said}");
        assert_eq!(verdict(&machine, "overlayfs").0, Verdict::Fault);
        put(&machine, "proc/filesystems", "nodev\tfuse\n");
        fs::remove_file(machine.path().join("dev/fuse")).unwrap();
        let (found, said) = verdict(&machine, "fuse");
        assert_eq!(found, Verdict::Fault);
        assert!(said.starts_with("/dev/fuse is missing"), "{said}");
        // One that is there, and is no device.
        fs::create_dir(machine.path().join("dev/fuse")).unwrap();
        let (found, said) = verdict(&machine, "fuse");
        assert_eq!(found, Verdict::Fault);
        assert!(said.starts_with("/dev/fuse cannot be opened"), "{said}");
    }

    /// On a fresh machine nobody has mounted an overlay yet.
    #[test]
    fn a_module_that_is_not_loaded_yet_is_there() {
        let machine = machine();
        put(&machine, "proc/filesystems", "nodev\tfuse\n");
        assert_eq!(verdict(&machine, "overlayfs").0, Verdict::Fault);
        let module = "lib/modules/6.18.0-1-amd64/kernel/fs/overlayfs/overlay.ko.xz";
        put(&machine, module, "");
        assert_eq!(verdict(&machine, "overlayfs").0, Verdict::Fine);
    }

    #[test]
    fn damon_is_told_only_while_it_pages_out() {
        let machine = machine();
        let scheme = format!("{DAMON}/0/contexts/0/schemes/0/action");
        put(&machine, &format!("{DAMON}/0/state"), "on\n");
        put(&machine, &scheme, "stat\n");
        assert_eq!(verdict(&machine, "page-reclaim").0, Verdict::Fine);
        put(&machine, &scheme, "pageout\n");
        assert_eq!(verdict(&machine, "page-reclaim").0, Verdict::Advice);
        put(&machine, &format!("{DAMON}/0/state"), "off\n");
        assert_eq!(verdict(&machine, "page-reclaim").0, Verdict::Fine);
        let module = "sys/module/damon_reclaim/parameters/enabled";
        put(&machine, module, "N\n");
        assert_eq!(verdict(&machine, "page-reclaim").0, Verdict::Fine);
        put(&machine, module, "Y\n");
        assert_eq!(verdict(&machine, "page-reclaim").0, Verdict::Advice);
    }
}
