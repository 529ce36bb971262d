//! A process that confines itself and does one deed: `confined-deed NAME DIRECTORY`.

#![expect(clippy::unwrap_used, reason = "part of a test, which may panic")]

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use confine::{
    Capability, Confinement, Files, Identity, Ports, Programs, Reads, Rings, Set, Unlisted, calls,
    capabilities,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::{Gid, Uid, getgid, getppid, getuid};

fn main() {
    let [name, place] = [1, 2].map(|index| std::env::args().nth(index).unwrap());
    let place = PathBuf::from(place);
    let deed = deeds().into_iter().find(|deed| deed.name == name).unwrap();
    if let Some(programs) = deed.service {
        let keep = [Capability::CAP_SYS_ADMIN, Capability::CAP_NET_BIND_SERVICE];
        capabilities::keep_only(&keep).unwrap();
        // One that mounts cannot have Landlock.
        if matches!((deed.ports)(), Ports::Opened(_)) {
            let files = Files {
                reads: Reads::All,
                writes: vec![place.join("write")],
                ports: (deed.ports)(),
                ..Files::default()
            };
            files.confine().unwrap();
        }
        calls::deny_intrusion(programs, Rings::Never).unwrap();
        return tell((deed.act)(&place));
    }
    let confinement = Confinement {
        identity: deed.identity,
        capabilities: vec![Capability::CAP_DAC_READ_SEARCH],
        files: Files {
            reads: (deed.reads)(&place),
            writes: vec![place.join("write")],
            ports: (deed.ports)(),
            ..Files::default()
        },
        calls: deed.set,
        unlisted: deed.unlisted,
    };
    confinement.apply().unwrap();
    tell((deed.act)(&place));
}

fn tell(done: io::Result<()>) {
    match done {
        Ok(()) => println!("done"),
        Err(error) => println!("failed {:?}", error.raw_os_error()),
    }
}

struct Deed {
    name: &'static str,
    /// Set for a deed of a service that mounts.
    service: Option<Programs>,
    identity: Option<Identity>,
    set: Set,
    reads: fn(&Path) -> Reads,
    ports: fn() -> Ports,
    unlisted: Unlisted,
    act: fn(&Path) -> io::Result<()>,
}

/// Whom a deed is done as: a user of no other meaning.
const NOBODY: Identity = Identity {
    uid: Uid::from_raw(65534),
    gid: Gid::from_raw(65534),
};

fn beneath(place: &Path) -> Reads {
    Reads::Beneath(vec![place.join("read"), "/proc".into()])
}

fn all(_: &Path) -> Reads {
    Reads::All
}

const fn deed(name: &'static str, act: fn(&Path) -> io::Result<()>) -> Deed {
    Deed {
        name,
        service: None,
        identity: None,
        set: Set::Serve,
        reads: beneath,
        ports: || Ports::Called(Vec::new()),
        unlisted: Unlisted::Kills,
        act,
    }
}

fn deeds() -> Vec<Deed> {
    vec![
        deed("work", work),
        deed("read outside", |place| {
            fs::read(place.join("outside")).map(drop)
        }),
        Deed {
            reads: all,
            ..deed("read outside, where that is allowed", |place| {
                fs::read(place.join("outside")).map(drop)
            })
        },
        Deed {
            identity: Some(NOBODY),
            ..deed("read as another user", |place| {
                assert_eq!((getuid(), getgid()), (NOBODY.uid, NOBODY.gid));
                // Its owner only may, and whoever has CAP_DAC_READ_SEARCH.
                fs::read(place.join("read/private")).map(drop)
            })
        },
        Deed {
            identity: Some(NOBODY),
            reads: all,
            ..deed("write as another user", |place| {
                fs::write(place.join("write/of root"), "")
            })
        },
        deed("list outside", |place| fs::read_dir(place).map(drop)),
        deed("write where it may only read", |place| {
            fs::write(place.join("read/new"), "").map(drop)
        }),
        Deed {
            reads: all,
            ..deed("write outside", |place| {
                fs::write(place.join("outside"), "")
            })
        },
        Deed {
            reads: all,
            ..deed("remove outside", |place| {
                fs::remove_file(place.join("outside"))
            })
        },
        deed("open a port", |_| {
            TcpListener::bind("127.0.0.1:0").map(drop)
        }),
        Deed {
            unlisted: Unlisted::Refused,
            ..deed("open a port, refused", |_| {
                TcpListener::bind("127.0.0.1:0").map(drop)
            })
        },
        Deed {
            unlisted: Unlisted::Refused,
            ..deed("call a socket", |place| {
                UnixStream::connect(place.join("socket")).map(drop)
            })
        },
        Deed {
            unlisted: Unlisted::Refused,
            ..deed("send to a name", |_| UnixDatagram::unbound().map(drop))
        },
        Deed {
            unlisted: Unlisted::Refused,
            ..deed("send to a name from one of a pair", |_| {
                UnixDatagram::pair().map(drop)
            })
        },
        Deed {
            set: Set::ServeAndConnect,
            ..deed("call a socket beside the network", |place| {
                UnixStream::connect(place.join("socket")).map(drop)
            })
        },
        Deed {
            set: Set::ServeAndCall,
            unlisted: Unlisted::Refused,
            ..deed("send to a name beside a service there", |_| {
                UnixDatagram::unbound().map(drop)
            })
        },
        Deed {
            set: Set::ServeAndAsk,
            unlisted: Unlisted::Refused,
            ..deed("call a service itself", |place| {
                UnixStream::connect(place.join("socket")).map(drop)
            })
        },
        Deed {
            set: Set::ServeAndCall,
            ..deed("call a service there", |place| {
                UnixStream::connect(place.join("socket")).map(drop)
            })
        },
        Deed {
            set: Set::ServeAndConnect,
            ports: || Ports::Called(vec![PORT]),
            ..deed("call a port", |_| call(PORT))
        },
        Deed {
            set: Set::ServeAndConnect,
            ports: || Ports::Called(vec![PORT]),
            ..deed("call another port", |_| call(PORT + 1))
        },
        Deed {
            service: Some(Programs::Never),
            ports: || Ports::Opened(vec![0]),
            ..deed("open a port of a service", |_| open(0))
        },
        Deed {
            service: Some(Programs::Never),
            ports: || Ports::Opened(vec![0]),
            ..deed("open another port of a service", |_| open(PORT))
        },
        Deed {
            service: Some(Programs::Never),
            ports: || Ports::Opened(vec![0]),
            ..deed("call any port as a service", |_| call(PORT + 1))
        },
        Deed {
            unlisted: Unlisted::Refused,
            ..deed("signal another process", |_| {
                Ok(kill(getppid(), Signal::SIGCONT)?)
            })
        },
        Deed {
            unlisted: Unlisted::Refused,
            ..deed("change a file's owner", |place| {
                chown(place.join("write"), Some(1), None)
            })
        },
        Deed {
            unlisted: Unlisted::Refused,
            ..deed("unmount", |place| {
                Ok(umount2(&place.join("write"), MntFlags::MNT_DETACH)?)
            })
        },
        Deed {
            service: Some(Programs::Never),
            ..deed("mount and unmount as a service", |place| {
                let (place, none) = (&place.join("write"), None::<&str>);
                mount(none, place, Some("tmpfs"), MsFlags::empty(), none)?;
                Ok(umount2(place, MntFlags::MNT_DETACH)?)
            })
        },
        Deed {
            service: Some(Programs::Executed),
            ..deed("execute as a service that does", |_| {
                assert!(Command::new("/bin/true").status()?.success());
                Ok(())
            })
        },
        Deed {
            service: Some(Programs::Never),
            ..deed("execute as a service", |_| {
                Err(Command::new("/bin/true").exec())
            })
        },
        Deed {
            service: Some(Programs::Executed),
            ..deed("look into another process as a service", peep)
        },
        Deed {
            service: Some(Programs::Executed),
            ..deed("become another user as a service", |_| {
                Ok(nix::unistd::setuid(NOBODY.uid)?)
            })
        },
        Deed {
            set: Set::Mount,
            reads: all,
            ..deed("execute as a helper", |_| {
                Command::new("/bin/true").status().map(drop)
            })
        },
        Deed {
            set: Set::Mount,
            reads: all,
            ..deed("make a directory as a helper", |place| {
                fs::create_dir(place.join("write/dir"))
            })
        },
        deed("execute", |_| Command::new("/bin/true").status().map(drop)),
        deed("mount", |place| {
            let place = &place.join("write");
            let none = None::<&str>;
            Ok(mount(none, place, Some("tmpfs"), MsFlags::empty(), none)?)
        }),
        deed("look into another process", peep),
        deed("leave for a namespace", |_| {
            Ok(unshare(CloneFlags::CLONE_NEWNS)?)
        }),
    ]
}

/// Ports that nobody listens at (tcpmux, compressnet).
const PORT: u16 = 1;

fn open(port: u16) -> io::Result<()> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop)
}

fn call(port: u16) -> io::Result<()> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map(drop)
}

/// Reads a byte of another process.
fn peep(_: &Path) -> io::Result<()> {
    let there = RemoteIoVec {
        base: 0x1000,
        len: 1,
    };
    let mut byte = [0];
    let mut here = [io::IoSliceMut::new(&mut byte)];
    Ok(process_vm_readv(getppid(), &mut here, &[there]).map(drop)?)
}

/// What a process that serves does all day.
fn work(place: &Path) -> io::Result<()> {
    assert_eq!(fs::read(place.join("read/file"))?, b"content");
    assert_eq!(fs::read_dir(place.join("read"))?.count(), 2);
    let file = place.join("write/file");
    fs::write(&file, vec![7; 1 << 20])?;
    fs::rename(&file, place.join("write/renamed"))?;
    fs::remove_file(place.join("write/renamed"))?;
    let (mut here, mut there) = UnixStream::pair()?;
    here.write_all(b"x")?;
    there.read_exact(&mut [0])?;
    let threads: Vec<_> = (0..4)
        .map(|number| std::thread::spawn(move || vec![number; 4 << 20].len()))
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), 4 << 20);
    }
    assert!(std::panic::catch_unwind(|| panic!("part of the test")).is_err());
    let (mut reader, mut writer) = io::pipe()?;
    writer.write_all(b"x")?;
    reader.read_exact(&mut [0])?;

    // This thread, and one that it starts.
    let status = || fs::read_to_string("/proc/thread-self/status").unwrap();
    for status in [status(), std::thread::spawn(status).join().unwrap()] {
        for expected in [
            // CAP_DAC_READ_SEARCH is number 2.
            "CapPrm:\t0000000000000004",
            "CapEff:\t0000000000000004",
            "CapBnd:\t0000000000000004",
            "CapInh:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
        ] {
            assert!(status.contains(expected), "{expected}\n{status}");
        }
    }
    Ok(())
}
