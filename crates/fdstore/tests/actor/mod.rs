//! The keeper and its child in these tests: this same program again, told by variables which of
//! them to be. The child connects to the test and does what that says, line by line.

use std::collections::HashMap;
use std::env;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use fdstore::{Inherited, KEEPER_PID, Keeper, Limits, Notifier, Program, Variables};

/// Which of them to be; unset in the test itself.
pub(crate) const ROLE: &str = "FDSTORE_TEST_ROLE";
/// Where the test listens for children.
pub(crate) const TEST_SOCKET: &str = "FDSTORE_TEST_SOCKET";
/// What one keeper has at a time.
pub(crate) const KEEPER_LOCK: &str = "FDSTORE_TEST_LOCK";

/// Plays the role that the variables name, and ends the process; or returns if there is none.
pub(crate) fn play() {
    let Some(role) = env::var_os(ROLE) else {
        return;
    };
    let inherited = Inherited::take(&Variables {
        pid: env::var_os("LISTEN_PID"),
        count: env::var_os("LISTEN_FDS"),
        names: env::var_os("LISTEN_FDNAMES"),
    })
    .unwrap();
    let code = match role.to_str().unwrap() {
        "keeper" => keep(Keeper::new(child(), &lock(), limits()).unwrap()),
        "adopter" => keep(Keeper::adopt(child(), &lock(), limits(), inherited).unwrap()),
        "child" => obey(inherited),
        role => panic!("{role} is no role"),
    };
    std::process::exit(code);
}

fn lock() -> PathBuf {
    env::var_os(KEEPER_LOCK).unwrap().into()
}

const fn limits() -> Limits {
    Limits {
        descriptors: 40,
        names_bytes: 1 << 10,
    }
}

fn keep(keeper: Keeper) -> i32 {
    keeper.run().unwrap().code.unwrap_or(99)
}

/// This program with a role.
pub(crate) fn program(role: &str) -> Program {
    let others = env::vars_os().filter(|(name, _)| name != ROLE);
    Program {
        path: env::current_exe().unwrap(),
        arguments: Vec::new(),
        variables: others.chain([(ROLE.into(), role.into())]).collect(),
    }
}

fn child() -> Program {
    program("child")
}

/// Says hello to the test, and does what it is told until it is told to exit.
fn obey(mut inherited: Inherited) -> i32 {
    let manager = env::var_os("NOTIFY_SOCKET").unwrap();
    let notifier = Notifier::find(&manager, &mut inherited).unwrap();
    let mut held: Vec<(String, OwnedFd)> = inherited.into_iter().collect();
    let mut test = UnixStream::connect(env::var_os(TEST_SOCKET).unwrap()).unwrap();
    let names: Vec<_> = held.iter().map(|(name, _)| name.as_str()).collect();
    let path = env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let keeper = env::var(KEEPER_PID).unwrap();
    writeln!(
        test,
        "{} {keeper} {} {}",
        std::process::id(),
        path.display(),
        names.join(":")
    )
    .unwrap();
    let mut orders = BufReader::new(test.try_clone().unwrap());
    let mut pipes = HashMap::new();
    loop {
        let mut order = String::new();
        if orders.read_line(&mut order).unwrap() == 0 {
            // The test is over.
            return 0;
        }
        let words: Vec<_> = order.split_whitespace().collect();
        let answer = match words.as_slice() {
            ["ready"] => notifier.ready().map(|()| String::new()),
            ["status", text] => notifier.status(text).map(|()| String::new()),
            ["stopping"] => notifier.stopping().map(|()| String::new()),
            ["next", path] => notifier.run_next((*path).as_ref()).map(|()| String::new()),
            ["remove", name] => notifier.remove(name).map(|()| String::new()),
            ["barrier"] => notifier
                .barrier(Duration::from_secs(60))
                .map(|()| String::new()),
            ["store-file", name, text] => {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(text.as_bytes()).unwrap();
                notifier.store(name, file.as_fd()).map(|()| String::new())
            }
            ["store-pipe", name, text] => {
                let (read, mut write) = std::io::pipe().unwrap();
                write.write_all(text.as_bytes()).unwrap();
                let stored = notifier.store(name, read.as_fd());
                // Its other end is closed by and by: the store must not mind.
                pipes.insert((*name).to_owned(), write);
                stored.map(|()| String::new())
            }
            ["read", name] => {
                let place = held.iter().position(|(its, _)| its == name).unwrap();
                let (_, descriptor) = held.remove(place);
                let mut file = File::from(descriptor);
                // A pipe has no start to go to.
                drop(file.rewind());
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                Ok(text)
            }
            [order @ ("surround" | "surround-and-die")] => {
                let kept: Vec<_> = held
                    .iter()
                    .map(|(name, descriptor)| (name.clone(), descriptor.as_fd()))
                    .collect();
                let (keeper, link) = fdstore::surround(&program("adopter"), &kept).unwrap();
                notifier.relink(link);
                if *order == "surround-and-die" {
                    notifier.store("last", test.as_fd()).unwrap();
                    return 1;
                }
                Ok(keeper.to_string())
            }
            ["surround-as-before"] => {
                // A socket with a name, and the number of who is to be heard.
                let socket = UnixDatagram::bind(lock().with_extension("sock")).unwrap();
                let named = format!("keeper-socket-{}", std::process::id());
                let mut names = vec![named.as_str()];
                let mut files = vec![socket.as_fd()];
                for (name, file) in &held {
                    names.push(name);
                    files.push(file.as_fd());
                }
                let Program {
                    path,
                    arguments,
                    variables,
                } = program("adopter");
                let names = names.join(":");
                let pid = rawio::inherit::start(&path, &arguments, variables, &files, &names);
                Ok(pid.unwrap().to_string())
            }
            ["exit", code] => return code.parse().unwrap(),
            order => panic!("{order:?} is no order"),
        };
        let answer = answer.unwrap_or_else(|error| format!("error: {error}"));
        writeln!(test, "{answer}").unwrap();
    }
}
