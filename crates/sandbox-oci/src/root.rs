//! The root of a container: built while the machine's files are still accessible, then entered for good.
//!
//! The image and its volumes may be malicious: links lead anywhere, and directories change
//! while they are walked. So every place is opened once, below the new root whatever the links
//! (`openat2` with `RESOLVE_IN_ROOT`), and mounts and new files use that descriptor, never a path again.

mod dev;
mod hide;
mod place;

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use nix::unistd::{chdir, fchdir, pivot_root};
use rawio::mount::{DetachedMount, Forbids, MountContext, Propagation, Scope};

use crate::cgroup::Groups;
use crate::error::{Result, at, invalid};
use crate::plan::Plan;
use crate::plan::mounts::{Content, MountPlan};
use place::{Shape, place};

/// A root that is built and not entered yet.
#[derive(Debug)]
pub(crate) struct Root {
    /// Its directory.
    top: OwnedFd,
    /// The machine's `/dev/null`, which covers masked paths.
    null: OwnedFd,
}

/// Builds the root of the calling process, which has its own mount namespace.
pub(crate) fn build(plan: &Plan, bundle: &Path, groups: &Groups) -> Result<Root> {
    let slave = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, slave, None::<&str>).map_err(at("detaching", "/"))?;
    let path = bundle.join(&plan.root);
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let dir = open(&path, flags, Mode::empty()).map_err(at("opening the root", &path))?;
    let copy = DetachedMount::copy_tree_of(dir.as_fd(), Scope::All);
    let top = copy.and_then(|copy| {
        if plan.root_is_private {
            copy.propagate(Propagation::Private, Scope::All)?;
        }
        copy.attach(dir.as_fd())
    });
    let root = Root {
        top: top.map_err(at("mounting the root", &path))?,
        null: dev::null()?,
    };
    let mut to_close = Vec::new();
    for mount in &plan.mounts {
        let mounted = root.mount(mount, bundle, groups)?;
        if mount.forbids.without(Forbids::WRITING) != mount.forbids {
            to_close.push((mounted, &mount.destination));
        }
    }
    let has_own_dev = |mount: &MountPlan| {
        mount.destination == Path::new("/dev") && matches!(mount.content, Content::Bind { .. })
    };
    if !plan.mounts.iter().any(has_own_dev) {
        dev::fill(root.top.as_fd(), &plan.devices)?;
    }
    let directory = &plan.process.directory;
    place(root.top.as_fd(), directory, Shape::Directory)?;
    for (mounted, destination) in to_close {
        let closed = DetachedMount::from(mounted).set(Forbids::WRITING, Forbids::NOTHING);
        closed.map_err(at("making read-only", destination))?;
    }
    Ok(root)
}

impl Root {
    /// Its directory.
    pub(crate) fn top(&self) -> BorrowedFd<'_> {
        self.top.as_fd()
    }

    /// Puts a terminal at `/dev/console`.
    pub(crate) fn mount_console(&self, terminal: BorrowedFd<'_>) -> Result<()> {
        let path = Path::new("/dev/console");
        let target = place(self.top(), path, Shape::File)?;
        let copy = DetachedMount::copy_tree_of(terminal, Scope::One);
        copy.and_then(|copy| copy.attach(target.as_fd()))
            .map(drop)
            .map_err(at("mounting", path))
    }

    /// Masks paths, and makes it the root of the calling process, for good.
    pub(crate) fn enter(self, plan: &Plan) -> Result<()> {
        for path in &plan.read_only {
            hide::make_read_only(self.top(), path)?;
        }
        for path in &plan.masked {
            hide::mask(self.top(), path, self.null.as_fd())?;
        }
        fchdir(&self.top).map_err(at("entering", "the new root"))?;
        if plan.root_is_read_only {
            let closed = DetachedMount::from(self.top).set(Forbids::WRITING, Forbids::NOTHING);
            closed.map_err(at("making read-only", "/"))?;
        }
        pivot_root(".", ".").map_err(at("changing", "the root"))?;
        umount2(".", MntFlags::MNT_DETACH).map_err(at("leaving", "the old root"))?;
        chdir("/").map_err(at("entering", "/"))
    }

    /// Mounts one thing, and returns its root; still writable if it is a file system of its own.
    fn mount(&self, plan: &MountPlan, bundle: &Path, groups: &Groups) -> Result<OwnedFd> {
        let destination = &plan.destination;
        let (made, shape) = match &plan.content {
            Content::Bind { source, scope } => bind(&bundle.join(source), *scope, plan)?,
            Content::FileSystem {
                kind,
                source,
                parameters,
            } => {
                let made = file_system(kind, source, parameters);
                (
                    made.map_err(at("making a mount for", destination))?,
                    Shape::Directory,
                )
            }
            Content::ControlGroups => return self.mount_control_groups(plan, groups),
        };
        let target = match &plan.content {
            Content::FileSystem { kind, .. } if ["proc", "sysfs"].contains(&&**kind) => {
                place::place_without_links(self.top(), destination)?
            }
            _ => place(self.top(), destination, shape)?,
        };
        self.finish(made, target.as_fd(), plan)
    }

    fn finish(
        &self,
        made: DetachedMount,
        target: BorrowedFd<'_>,
        plan: &MountPlan,
    ) -> Result<OwnedFd> {
        let failed = || at("mounting", &plan.destination);
        // Device nodes are made in file systems that are closed at the end.
        let forbids = match plan.content {
            Content::Bind { .. } => plan.forbids,
            _ => plan.forbids.without(Forbids::WRITING),
        };
        made.set(forbids, plan.permits).map_err(failed())?;
        if let Some(times) = plan.times {
            made.keep_access_times(times).map_err(failed())?;
        }
        if let Some((how, scope)) = plan.propagation {
            made.propagate(how, scope).map_err(failed())?;
        }
        made.attach(target).map_err(failed())
    }

    /// Mounts the container's own groups, and no others: each hierarchy of version 1 under its name, or the
    /// one of version 2, of which a namespace shows the own part.
    fn mount_control_groups(&self, plan: &MountPlan, groups: &Groups) -> Result<OwnedFd> {
        let failed = || at("mounting control groups at", &plan.destination);
        let target = place(self.top(), &plan.destination, Shape::Directory)?;
        if groups.legacy.is_empty() {
            let made = file_system("cgroup2", "cgroup", &[]).map_err(failed())?;
            return self.finish(made, target.as_fd(), plan);
        }
        let mode = [("mode".to_owned(), "755".to_owned())];
        let made = file_system("tmpfs", "cgroup", &mode).map_err(failed())?;
        let top = self.finish(made, target.as_fd(), plan)?;
        let legacy = groups.legacy.iter();
        let legacy = legacy.map(|(name, legacy)| (name.as_str(), &legacy.dir));
        for (name, dir) in legacy.chain([("unified", &groups.unified)]) {
            let source = File::open(dir).map_err(at("opening", dir))?;
            let copy = DetachedMount::copy_of(source.as_fd()).map_err(failed())?;
            copy.set(plan.forbids, Forbids::NOTHING).map_err(failed())?;
            let target = place(top.as_fd(), &Path::new("/").join(name), Shape::Directory)?;
            copy.attach(target.as_fd()).map_err(failed())?;
            for link in name.split(',').filter(|link| *link != name) {
                let linked = nix::unistd::symlinkat(name, &top, link);
                linked.map_err(|errno| failed()(errno.into()))?;
            }
        }
        Ok(top)
    }
}

/// A directory or a file of the machine. Later mounts below it there propagate to it, unless its
/// specification says otherwise.
fn bind(source: &Path, scope: Scope, plan: &MountPlan) -> Result<(DetachedMount, Shape)> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let file = open(source, flags, Mode::empty()).map_err(at("opening", source))?;
    let file = File::from(file);
    let is_dir = file.metadata().map_err(at("reading", source))?.is_dir();
    let copy = DetachedMount::copy_tree_of(file.as_fd(), scope).map_err(at("mounting", source))?;
    if plan.propagation.is_none() {
        let slave = copy.propagate(Propagation::Slave, Scope::All);
        slave.map_err(at("mounting", source))?;
    }
    let shape = match is_dir {
        true => Shape::Directory,
        false => Shape::File,
    };
    Ok((copy, shape))
}

fn file_system(
    kind: &str,
    source: &str,
    parameters: &[(String, String)],
) -> std::io::Result<DetachedMount> {
    let text = |text: &str| CString::new(text).map_err(std::io::Error::from);
    let context = MountContext::open(&text(kind)?)?;
    context.set(c"source", source.as_bytes())?;
    for (name, value) in parameters {
        context.set(&text(name)?, value.as_bytes())?;
    }
    context.mount_writable()
}

/// Sets parameters of the kernel by a view of them that nothing in the container can cover.
pub(crate) fn set_parameters(plan: &Plan) -> Result<()> {
    let domain = plan.domainname.iter();
    let domain = domain.map(|name| (PathBuf::from("kernel/domainname"), name.clone()));
    let parameters: Vec<_> = plan.sysctl.clone().into_iter().chain(domain).collect();
    if parameters.is_empty() {
        return Ok(());
    }
    let proc = file_system("proc", "proc", &[]).map_err(at("making a view of", "/proc"))?;
    for (path, value) in parameters {
        let path = Path::new("sys").join(path);
        if path.components().any(|part| part.as_os_str() == "..") {
            return invalid(format!("{} is no parameter", path.display()));
        }
        let mut file = place::open_below(proc.as_fd(), &path, OFlag::O_WRONLY)?;
        std::io::Write::write_all(&mut file, value.as_bytes()).map_err(at("setting", &path))?;
    }
    Ok(())
}
