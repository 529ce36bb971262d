//! How many files a process may have open, and how many of them a prewarm may hold.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that are asked for: some thousand for each of a few hundred layers. The system
/// gives no process more by default (`fs.nr_open`).
const MANY_FILES: u64 = 1 << 20;

/// A prewarm holds a descriptor on every file of the boot set; the usual 1024 are not enough for
/// a Debian. What the system will not give costs speed only.
pub fn allow_many_files() {
    let raised = setrlimit(Resource::RLIMIT_NOFILE, MANY_FILES, MANY_FILES).or_else(|_| {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    });
    if let Err(error) = raised {
        log::debug!("the limit of open files stays as it is: {error}");
    }
}

/// Returns how many files a prewarm may hold open for each of so many mounts: half of the descriptors
/// of this process are for that. The kernel may evict pages of files that are not held, which costs
/// speed only; a process without free descriptors could not serve anything more.
pub fn files_for_each_of(mounts: u64) -> u64 {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    files / 2 / mounts
}
