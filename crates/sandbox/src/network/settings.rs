//! The settings of network namespaces.
//!
//! They are files of `/proc/sys/net`, which are others in each namespace under the same name. The kernel keeps an entry for each of
//! them as long as its namespace is there, all in one row: with a thousand sandboxes a look-up walked past a thousand entries of
//! others. So they are reached by a `proc` of this program's own that is mounted nowhere. It is replaced after some
//! namespaces, and the entries end with it.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use parking_lot::Mutex;
use rawio::mount::{DetachedMount, Forbids, MountContext};

use crate::error::{Result, at, step};

/// Settings that are written through one `proc`. Mounting one takes as long as some ten of them.
const USES_MAX: u32 = 64;

/// The one that is in use.
static TABLE: Mutex<Option<Arc<Table>>> = Mutex::new(None);

/// A `proc` that is mounted nowhere.
#[derive(Debug)]
struct Table {
    mount: DetachedMount,
    uses: AtomicU32,
}

impl Table {
    fn current() -> Result<Arc<Self>> {
        let current = TABLE.lock().clone();
        if let Some(table) = current
            && table.uses.fetch_add(1, Relaxed) < USES_MAX
        {
            return Ok(table);
        }
        let forbids = Forbids::PRIVILEGES
            .and(Forbids::DEVICES)
            .and(Forbids::PROGRAMS);
        let mount = MountContext::open(c"proc")
            .and_then(|context| context.mount_forbidding(forbids))
            .map_err(step("mounting /proc"))?;
        let uses = AtomicU32::new(1);
        let table = Arc::new(Self { mount, uses });
        // The one before ends when nobody holds the lock.
        let _before = TABLE.lock().replace(Arc::clone(&table));
        Ok(table)
    }

    fn write(&self, setting: &str, value: &str) -> io::Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let file = openat(self.mount.as_fd(), setting, flags, Mode::empty())?;
        File::from(file).write_all(value.as_bytes())
    }
}

/// Sets a setting of IPv4 for the calling thread's namespace.
pub(super) fn set(setting: &str, value: &str) -> Result<()> {
    let path = format!("sys/net/ipv4/{setting}");
    let table = Table::current()?;
    table
        .write(&path, value)
        .map_err(at("writing /proc of", path))
}

#[cfg(all(test, feature = "privileged"))]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::fs;

    use super::super::make;

    /// Inodes of `proc` that the kernel holds, of the whole machine.
    fn inodes() -> usize {
        let table = fs::read_to_string("/proc/slabinfo").unwrap();
        let line = table
            .lines()
            .find(|line| line.starts_with("proc_inode_cache "));
        line.unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    }

    #[test]
    fn privileged_namespaces_that_stay_have_no_entries_that_stay() {
        const NAMESPACES: usize = 200;
        let mut all = Vec::new();
        // Others on the machine have some come and go, which is seen less in some rounds than in others.
        let mut grown = [0; 5].map(|_: usize| {
            let before = inodes();
            all.extend((0..NAMESPACES).map(|_| make().unwrap()));
            inodes().saturating_sub(before)
        });
        grown.sort_unstable();
        // Two settings of each would be twice as many.
        assert!(
            grown[1] < NAMESPACES,
            "{grown:?} for {NAMESPACES} namespaces each"
        );
    }
}
