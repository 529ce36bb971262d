//! A process that has what a worker has, and does one deed: this same program again, told by a
//! variable whom to be.

use std::fs;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use confine::{Capability, Confinement, Files, Identity, Ports, Reads, Set, Unlisted};
use mounting::confinement::{ImageNeeds, image_worker};
use nix::libc::{self, ucred};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, UnixCredentials, sendmsg};
use nix::unistd::{Gid, Uid, getgid, getuid};

use lab::{Lab, ok};

const ROLE: &str = "YOLOFS_TEST_INTRUDER";

/// The kernel's list of system calls says no.
pub(crate) const UNKNOWN: &str = "failed 38";
/// Permissions or Landlock say no.
pub(crate) const DENIED: &str = "failed 13";
/// Nobody is there.
pub(crate) const REFUSED: &str = "failed 111";

/// The one port that may be called.
const PORT: u16 = 1;

/// Who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum As {
    /// A worker of a disk, as another user.
    Worker,
    /// The same where there is no such user.
    RootWorker,
    /// A worker that asks a service in the file system, as another user.
    Caller,
    /// The same where that user may not call there.
    RootCaller,
    /// A worker that asks a service at a port.
    PortCaller,
    /// A worker that asks a service in the file system, to which its node connects for it.
    NodeCaller,
    /// A worker of a block image whose layers are on this machine.
    Images,
    /// A worker of block images whose layers come from registries.
    FetchedImages,
}

const ALL: [As; 8] = [
    As::Worker,
    As::RootWorker,
    As::Caller,
    As::RootCaller,
    As::PortCaller,
    As::NodeCaller,
    As::Images,
    As::FetchedImages,
];

/// Below the run directory: the writable layer of an image, and the cache of images.
pub(crate) const LAYER: &str = "layer";
pub(crate) const LOWER: &str = "lower";
pub(crate) const CACHE: &str = "cache";
pub(crate) const STORE: &str = "store";

/// Has a deed done, and returns how that ended.
pub(crate) fn does(lab: &Lab, who: As, what: &str, place: &Path, whose: &str) -> String {
    ok(&mut tries(lab, who, what, place, whose))
        .trim()
        .to_owned()
}

/// Returns the signal by which the kernel ends who tries a deed.
pub(crate) fn dies(lab: &Lab, who: As, what: &str, place: &Path) -> Option<i32> {
    let mut command = tries(lab, who, what, place, "");
    command.status().unwrap().signal()
}

fn tries(lab: &Lab, who: As, what: &str, place: &Path, whose: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .env(ROLE, format!("{who:?}"))
        .arg(what)
        .args([place, &lab.run_dir()])
        .arg(whose);
    command
}

/// Plays the intruder, and ends the process; or returns if this is none.
pub(crate) fn play() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let who = ALL
        .into_iter()
        .find(|who| format!("{who:?}") == role)
        .unwrap();
    let mut arguments = std::env::args_os().skip(1);
    let mut next = || arguments.next().unwrap();
    let (what, place, run_dir, whose) =
        (next(), PathBuf::from(next()), PathBuf::from(next()), next());
    let (what, whose) = (what.to_str().unwrap(), whose.to_str().unwrap());
    // It is a worker to whoever is asked.
    let socket = run_dir.join(format!("workers/{}.sock", std::process::id()));
    if run_dir.join("workers").exists() {
        fs::write(&socket, "").unwrap();
    }
    confine(who, &run_dir);
    let done = match what {
        "forge" => forge(&place, whose.parse().unwrap()).map(|()| "done".to_owned()),
        "connect" => UnixStream::connect(&place).map(|_| "done".to_owned()),
        "unmount" => unmount(&place, whose),
        "hand" | "let_go" | "close" => ask(&place, what, whose),
        "read" => fs::read(&place).map(|_| "done".to_owned()),
        "write" => fs::write(&place, "").map(|()| "done".to_owned()),
        "open" => fs::set_permissions(&place, fs::Permissions::from_mode(0o644))
            .map(|()| "done".to_owned()),
        "mount" => nix::mount::mount(
            Some("none"),
            &place,
            Some("tmpfs"),
            nix::mount::MsFlags::empty(),
            None::<&str>,
        )
        .map(|()| "done".to_owned())
        .map_err(Into::into),
        "execute" => Err(Command::new(&place).exec()),
        "call" => TcpStream::connect((Ipv4Addr::LOCALHOST, whose.parse().unwrap()))
            .map(|_| "done".to_owned()),
        other => panic!("{other} is no deed"),
    };
    match done {
        Ok(said) => println!("{said}"),
        Err(error) => println!("failed {}", error.raw_os_error().unwrap_or(0)),
    }
    std::process::exit(0);
}

fn confine(who: As, run_dir: &Path) {
    let cache = match who {
        As::Images => None,
        As::FetchedImages => Some(run_dir.join(CACHE)),
        _ => return confined(who).apply().unwrap(),
    };
    let layers = vec![run_dir.join(LAYER)];
    let reads = cache.is_none().then(|| vec![run_dir.join(LOWER)]);
    let store = cache.as_ref().map(|_| run_dir.join(STORE));
    let needs = ImageNeeds {
        layers,
        reads,
        cache,
        store,
        rings: false,
    };
    image_worker(Some(&needs), Some(OTHER)).unwrap();
}

/// Who workers are that are not root.
const OTHER: Identity = Identity {
    uid: Uid::from_raw(65534),
    gid: Gid::from_raw(65534),
};

/// As crates/mounting/src/confinement.rs confines workers.
fn confined(who: As) -> Confinement {
    let (calls, ports) = match who {
        As::Worker | As::RootWorker => (Set::Serve, Vec::new()),
        As::Caller | As::RootCaller => (Set::ServeAndCall, Vec::new()),
        As::PortCaller => (Set::ServeAndConnect, vec![PORT]),
        As::NodeCaller => (Set::ServeAndAsk, Vec::new()),
        As::Images | As::FetchedImages => panic!("{who:?} is confined otherwise"),
    };
    let is_root = matches!(who, As::RootWorker | As::RootCaller);
    let mut capabilities = vec![Capability::CAP_DAC_READ_SEARCH, Capability::CAP_IPC_LOCK];
    let mut reads = Reads::ContentBeneath(Vec::new());
    if !matches!(who, As::PortCaller | As::NodeCaller) {
        capabilities.extend([Capability::CAP_FOWNER, Capability::CAP_SYS_ADMIN]);
        reads = Reads::All;
    }
    Confinement {
        identity: (!is_root).then_some(OTHER),
        capabilities,
        files: Files {
            reads,
            writes: Vec::new(),
            ports: Ports::Called(ports),
            ..Files::default()
        },
        calls,
        unlisted: Unlisted::Refused,
    }
}

/// Tells a service manager, as if another process did, to start another program.
fn forge(place: &Path, pid: i32) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    let who = UnixCredentials::from(ucred {
        pid,
        uid: getuid().as_raw(),
        gid: getgid().as_raw(),
    });
    sendmsg(
        socket.as_raw_fd(),
        &[IoSlice::new(b"X_YOLOFS_PROGRAM=/bin/false\nSTOPPING=1")],
        &[ControlMessage::ScmCredentials(&who)],
        MsgFlags::empty(),
        Some(&UnixAddr::new(place)?),
    )?;
    Ok(())
}

/// Asks the node to take another's mount away.
fn unmount(api: &Path, id: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(api)?;
    let _refused = write!(
        stream,
        "DELETE /v1/mounts/{id} HTTP/1.1\r\nHost: node\r\n\r\n"
    );
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said.replace(['\r', '\n'], " "))
}

/// Asks a worker for what the node may ask for (crates/node-service/src/wire.rs).
fn ask(worker: &Path, what: &str, key: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(worker)?;
    let json = format!("{{\"ask\": \"{what}\", \"id\": \"{key}\"}}");
    let mut message = 1_u32.to_le_bytes().to_vec();
    message.extend(
        u32::try_from(json.len())
            .map_err(io::Error::other)?
            .to_le_bytes(),
    );
    message.extend(json.bytes());
    // It may have its answer before it has asked.
    let _refused = stream.write_all(&message);
    let mut said = Vec::new();
    stream.read_to_end(&mut said)?;
    Ok(String::from_utf8_lossy(said.get(8..).unwrap_or_default()).into_owned())
}

const _: () = assert!(libc::ENOSYS == 38 && libc::EACCES == 13 && libc::ECONNREFUSED == 111);
