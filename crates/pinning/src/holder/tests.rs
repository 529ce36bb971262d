use std::fs;

use blocks::{Access, Event, FileId, SourceId, Warmth};
use tracer::{CommandId, Trace, TraceEvent, TracedFile};

use super::*;
use crate::profile::{SOURCE, version_of};

/// A directory with a file `lib` of 100 pages, and profiles of it.
struct PinFixture {
    dir: tempfile::TempDir,
    pins: PinDir,
}

impl PinFixture {
    fn new() -> Self {
        // On a disk: of what is in memory only, nothing is held.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let pins = PinDir::new(dir.path().join("pins"));
        let desk = Self { dir, pins };
        desk.replace("lib", 100, 1);
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// Puts a file in place, as a package manager does.
    fn replace(&self, name: &str, pages: u64, fill: u8) {
        let aside = self.path(&format!("{name}.new"));
        fs::write(&aside, vec![fill; usize::try_from(pages * PAGE).unwrap()]).unwrap();
        fs::File::open(&aside).unwrap().sync_all().unwrap();
        fs::rename(aside, self.path(name)).unwrap();
    }

    fn profile(&self, profile: &str, file: &str, pages: &[(u64, u64)]) {
        let path = self.path(file);
        let read = |&(start, end): &(u64, u64)| TraceEvent {
            at_us: 0,
            took_us: 0,
            pid: 0,
            command: CommandId(0),
            what: Event::Read(Access {
                file: FileId(0),
                offset: start * PAGE,
                len: (end - start) * PAGE,
                warmth: Warmth::Unknown,
            }),
        };
        let mut trace = Trace {
            files: vec![TracedFile {
                file: FileId(0),
                version: version_of(&path.metadata().unwrap()),
                path: path.to_str().unwrap().trim_start_matches('/').into(),
            }],
            commands: vec![Vec::new()],
            events: pages.iter().map(read).collect(),
            ..Trace::default()
        };
        trace.info.label = SOURCE.into();
        trace.info.source = SourceId::of_label(SOURCE.as_bytes());
        self.pins.keep(profile, &trace).unwrap();
        self.pins.apply(profile).unwrap();
    }

    fn holder(&self, budget: u64) -> Holder {
        let mut holder = Holder::new(self.pins.clone(), budget, None);
        holder.refresh();
        holder
    }
}

/// What the kernel says: bytes of this file that this process has locked, by the size of the mappings.
fn locked_in_kernel(path: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut locked = 0;
    let mut is_ours = false;
    for line in maps.lines() {
        if line.contains('-') && line.contains(" r--s ") {
            is_ours = line.ends_with(path.to_str().unwrap());
        } else if is_ours && let Some(kib) = line.strip_prefix("Locked:") {
            locked += kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
            is_ours = false;
        }
    }
    locked
}

#[test]
fn just_the_pages_of_the_profiles_are_held_until_they_are_dropped() {
    let desk = PinFixture::new();
    desk.profile("a", "lib", &[(0, 2), (50, 60)]);
    desk.profile("b", "lib", &[(55, 70)]);
    let mut holder = desk.holder(1 << 20);
    let status = holder.status();
    assert_eq!(status.locked_bytes, 22 * PAGE);
    assert_eq!(locked_in_kernel(&desk.path("lib")), 22 * PAGE);
    let of: Vec<_> = status
        .profiles
        .iter()
        .map(|profile| profile.locked_bytes)
        .collect();
    assert_eq!(of, [12 * PAGE, 15 * PAGE]);
    desk.pins.drop_one("a").unwrap();
    holder.refresh();
    assert_eq!(holder.status().locked_bytes, 15 * PAGE);
    assert!(!holder.status().profiles[0].applied);
    desk.pins.drop_one("b").unwrap();
    holder.refresh();
    assert_eq!(locked_in_kernel(&desk.path("lib")), 0);
}

#[test]
fn a_file_that_is_replaced_is_held_in_its_new_version() {
    let desk = PinFixture::new();
    desk.profile("a", "lib", &[(0, 2), (50, 60)]);
    let mut holder = desk.holder(1 << 20);
    assert_eq!(holder.status().profiles[0].changed_files, 0);
    desk.replace("lib", 55, 2);
    holder.refresh();
    let status = holder.status();
    assert_eq!(status.locked_bytes, 7 * PAGE, "it is shorter");
    assert_eq!(locked_in_kernel(&desk.path("lib")), 7 * PAGE);
    assert_eq!(status.profiles[0].changed_files, 1);
    fs::remove_file(desk.path("lib")).unwrap();
    holder.refresh();
    assert_eq!(
        (
            holder.status().locked_bytes,
            holder.status().profiles[0].missing_files
        ),
        (0, 1)
    );
    assert_eq!(holder.status().problems, [""; 0]);
    desk.replace("lib", 100, 3);
    holder.refresh();
    assert_eq!(holder.status().locked_bytes, 12 * PAGE, "it is back");
}

/// A new version of a library has a new name, and a link of the shorter name leads to it.
#[test]
fn a_library_is_held_under_its_new_name_once() {
    let desk = PinFixture::new();
    let link = |target: &str| {
        let aside = desk.path("libz.so.1.new");
        std::os::unix::fs::symlink(target, &aside).unwrap();
        fs::rename(aside, desk.path("libz.so.1")).unwrap();
    };
    desk.replace("libz.so.1.2", 100, 1);
    link("libz.so.1.2");
    desk.profile("a", "libz.so.1.2", &[(0, 2), (50, 60)]);
    let mut holder = desk.holder(1 << 20);
    assert_eq!(holder.status().followed_files, 0);
    assert!(holder.paths().contains(&desk.path("libz.so.1")));
    desk.replace("libz.so.1.3", 100, 2);
    // Both are wanted by then, one by each of two profiles.
    desk.profile("b", "libz.so.1.3", &[(55, 70)]);
    link("libz.so.1.3");
    fs::remove_file(desk.path("libz.so.1.2")).unwrap();
    holder.refresh();
    assert_eq!(holder.status().locked_bytes, 22 * PAGE);
    assert_eq!(locked_in_kernel(&desk.path("libz.so.1.3")), 22 * PAGE);
    assert_eq!(locked_in_kernel(&desk.path("libz.so.1.2")), 0);
    let of = |holder: &Holder| (holder.status().followed_files, holder.status().errors);
    assert_eq!(of(&holder), (1, 0));
    assert_eq!(holder.status().profiles[0].locked_bytes, 12 * PAGE);
    assert_eq!(holder.status().profiles[0].changed_files, 1);
    holder.refresh();
    assert_eq!(of(&holder), (1, 0), "nothing is new");
    desk.replace("libz.so.1.3", 100, 3);
    holder.refresh();
    assert_eq!(of(&holder), (2, 0), "the file of two profiles counts once");
    assert_eq!(locked_in_kernel(&desk.path("libz.so.1.3")), 22 * PAGE);
}

#[test]
fn what_finds_no_room_is_named_in_the_order_of_use() {
    let desk = PinFixture::new();
    desk.replace("other", 100, 2);
    desk.profile("b", "other", &[(0, 30)]);
    let mut holder = desk.holder(40 * PAGE);
    assert_eq!(holder.status().bound, None);
    desk.profile("a", "lib", &[(0, 30)]);
    holder.refresh();
    let status = holder.status();
    let bound = status.bound.clone().unwrap();
    assert_eq!(
        (bound.kind, bound.limit_bytes),
        (BoundKind::Budget, 40 * PAGE)
    );
    let left_out = LeftOut {
        path: desk.path("other"),
        bytes: 20 * PAGE,
    };
    assert_eq!(status.left_out, [left_out], "a comes before b");
    assert_eq!(
        (status.wanted_bytes, status.locked_bytes),
        (60 * PAGE, 40 * PAGE)
    );
}

#[test]
fn the_budget_is_kept_and_used_up() {
    let desk = PinFixture::new();
    desk.replace("other", 100, 2);
    desk.profile("a", "lib", &[(0, 30)]);
    desk.profile("b", "other", &[(0, 30), (40, 50)]);
    let mut holder = desk.holder(50 * PAGE);
    let bytes = |holder: &Holder| (holder.status().locked_bytes, holder.status().left_out_bytes);
    assert_eq!(bytes(&holder), (50 * PAGE, 20 * PAGE));
    assert_eq!(
        locked_in_kernel(&desk.path("other")),
        20 * PAGE,
        "the first pages"
    );
    holder.refresh();
    assert_eq!(bytes(&holder), (50 * PAGE, 20 * PAGE));
    desk.pins.drop_one("a").unwrap();
    holder.refresh();
    assert_eq!(bytes(&holder), (40 * PAGE, 0), "there is room now");
}

#[test]
fn what_is_no_file_or_damaged_is_told_and_holds_nothing_up() {
    let desk = PinFixture::new();
    desk.profile("a", "lib", &[(0, 30)]);
    fs::remove_file(desk.path("lib")).unwrap();
    nix::unistd::mkfifo(&desk.path("lib"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(desk.path("pins/broken.trace"), "nonsense").unwrap();
    // Of a file that is in memory only, there is nothing to hold.
    let memory = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
    let only_copy = memory.path().join("lib");
    fs::write(&only_copy, vec![1; 4096]).unwrap();
    desk.profile("memory", only_copy.to_str().unwrap(), &[(0, 1)]);
    desk.replace("other", 100, 2);
    desk.profile("other", "other", &[(0, 3)]);
    let holder = desk.holder(1 << 20);
    let status = holder.status();
    assert_eq!(
        (status.locked_bytes, status.profiles[0].missing_files),
        (3 * PAGE, 1),
        "the others are held"
    );
    assert!(
        status.problems[0].contains("broken"),
        "{:?}",
        status.problems
    );
}
