//! The files that a process may open, and the ports that it may connect to, by Landlock.
//!
//! Landlock checks the path by which a file is opened. Descriptors that the process has already
//! keep their rights, and files that are opened as paths only (`O_PATH`) need none. It also
//! forbids all changes of the mount table, whatever the capabilities: a process that has to
//! mount or unmount cannot use it.
//!
//! The kernel may support only a part of it, or none: then the other restrictions remain.

use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, NetPort, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, Scope, path_beneath_rules,
};

use crate::ConfineError;

/// The newest version of Landlock that is made use of (Linux 6.12).
const NEWEST: ABI = ABI::V6;

/// What may be opened for reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Whatever permissions allow. For processes that receive descriptors of places that are unknown at
    /// their start.
    All,
    /// Files beneath these paths, and beneath those that may be written.
    Beneath(Vec<PathBuf>),
    /// The same for the content of files; directories may be listed anywhere. For processes that receive
    /// descriptors of directories, and of no file.
    ContentBeneath(Vec<PathBuf>),
}

/// Which files may be opened. By default none, and no port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Paths for reading.
    pub reads: Reads,
    /// Paths for writing, creating and removing: files beneath them. Missing ones are
    /// skipped.
    pub writes: Vec<PathBuf>,
    /// Beneath these paths, empty directories may be removed: for processes that remove their own in a shared
    /// parent.
    pub clears: Vec<PathBuf>,
    /// Beneath these paths, files may be removed, and nothing else be done: for the socket of a process beside others.
    pub removes: Vec<PathBuf>,
    /// Paths for reading and executing: programs, and the libraries beside them. What is executed has the same access.
    pub executes: Vec<PathBuf>,
    /// What may be done with TCP ports.
    pub ports: Ports,
}

/// What may be done with TCP ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Connections to these are allowed, and listening on none.
    Called(Vec<u16>),
    /// Any may be called, and these be opened; 0 is one that the system chooses.
    Opened(Vec<u16>),
}

impl Default for Reads {
    fn default() -> Self {
        Self::Beneath(Vec::new())
    }
}

impl Default for Ports {
    fn default() -> Self {
        Self::Called(Vec::new())
    }
}

impl Files {
    /// Confines the calling thread, and all that it starts, to these files. It cannot execute other
    /// programs, use other ports, signal processes outside, or connect to abstract unix sockets of processes
    /// outside.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn confine(&self) -> Result<(), ConfineError> {
        let change: BitFlags<AccessFs> = AccessFs::from_write(NEWEST);
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let governed = match self.reads {
            Reads::All => change | AccessFs::Execute,
            Reads::Beneath(_) => AccessFs::from_all(NEWEST),
            Reads::ContentBeneath(_) => AccessFs::from_all(NEWEST) & !AccessFs::ReadDir,
        };
        let (ports, access_net, governed_net) = match &self.ports {
            Ports::Called(ports) => (ports, AccessNet::ConnectTcp, AccessNet::from_all(NEWEST)),
            Ports::Opened(ports) => (ports, AccessNet::BindTcp, AccessNet::BindTcp.into()),
        };
        let rules = Ruleset::default()
            .handle_access(governed)?
            .handle_access(governed_net)?
            .scope(Scope::from_all(NEWEST))?
            .create()?;
        let (places, read) = match &self.reads {
            Reads::All => (&[][..], BitFlags::empty()),
            Reads::Beneath(places) | Reads::ContentBeneath(places) => {
                (&places[..], read & governed)
            }
        };
        let rules = rules
            .add_rules(path_beneath_rules(places, read))?
            .add_rules(path_beneath_rules(&self.writes, read | change))?
            .add_rules(path_beneath_rules(&self.clears, AccessFs::RemoveDir))?
            .add_rules(path_beneath_rules(&self.removes, AccessFs::RemoveFile))?
            .add_rules(path_beneath_rules(
                &self.executes,
                (AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir) & governed,
            ))?;
        let port = |port: &u16| Ok::<_, ConfineError>(NetPort::new(*port, access_net));
        let rules = rules.add_rules(ports.iter().map(port))?;
        let status = rules.restrict_self()?;
        log::debug!("confined to files by Landlock: {:?}", status.ruleset);
        Ok(())
    }
}
