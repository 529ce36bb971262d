//! The files that a process may open, and the ports that it may call, by Landlock.
//!
//! Landlock looks at the path by which a file is opened. Descriptors that the process has already
//! keep what they can, and files that are opened as paths only (`O_PATH`) need no right. It also
//! forbids everything that changes the table of mounts, whatever capabilities there are: who has
//! to mount or unmount cannot have it.
//!
//! The kernel may know less of it than is asked for, or nothing: then the rest is what counts.

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
    /// Whatever permissions allow. For who is handed descriptors of places that nobody knows when
    /// the process starts.
    All,
    /// What is beneath these paths, and beneath those that may be written.
    Beneath(Vec<PathBuf>),
    /// The same of what files have in them; directories may be listed anywhere. For who is handed
    /// descriptors of directories, and of no file.
    ContentBeneath(Vec<PathBuf>),
}

/// Which files may be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// For reading.
    pub reads: Reads,
    /// For writing, making and removing: what is beneath these paths. One that does not exist is
    /// left out.
    pub writes: Vec<PathBuf>,
    /// Beneath these paths, empty directories may be removed: for who removes its own, which lies where
    /// others' do.
    pub clears: Vec<PathBuf>,
    /// What may be done with TCP ports.
    pub ports: Ports,
}

/// What may be done with TCP ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// These may be called, and none be opened.
    Called(Vec<u16>),
    /// Any may be called, and these be opened; 0 is one that the system chooses.
    Opened(Vec<u16>),
}

impl Files {
    /// Confines the calling thread, and all that it starts, to these files. Nothing can be
    /// executed, nothing else be done with ports, nobody outside be signalled, and no socket
    /// of the abstract namespace that somebody outside has be called.
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
            .add_rules(path_beneath_rules(&self.clears, AccessFs::RemoveDir))?;
        let port = |port: &u16| Ok::<_, ConfineError>(NetPort::new(*port, access_net));
        let rules = rules.add_rules(ports.iter().map(port))?;
        let status = rules.restrict_self()?;
        log::debug!("confined to files by Landlock: {:?}", status.ruleset);
        Ok(())
    }
}
