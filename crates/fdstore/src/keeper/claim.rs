//! One keeper at a time: a lock file.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::{Result, StoreError};

/// Most bytes of a process's number in a lock file.
const PID_BYTES: u64 = 16;
/// How often it is looked whether it is free; nothing tells.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The right to be the keeper, until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct Claim(#[expect(dead_code, reason = "held for its lock")] Flock<File>);

impl Claim {
    /// Takes the lock, and writes the owner to it. Waits up to `patience` for another keeper that may
    /// be about to end.
    pub(super) fn take(path: &Path, patience: Duration) -> Result<Self> {
        let deadline = Instant::now() + patience;
        let step = || StoreError::step::<std::io::Error>("locking what one keeper has at a time");
        loop {
            let mut options = File::options();
            options.create(true).truncate(false).read(true).write(true);
            let mut file = options.open(path).map_err(step())?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(mut lock) => {
                    let pid = std::process::id().to_string();
                    let write = lock
                        .set_len(0)
                        .and_then(|()| lock.write_all(pid.as_bytes()));
                    write.map_err(step())?;
                    return Ok(Self(lock));
                }
                Err((held, Errno::EWOULDBLOCK)) => file = held,
                Err((_, errno)) => return Err(step()(errno.into())),
            }
            if Instant::now() >= deadline {
                let mut pid = String::new();
                let read = (&mut file).take(PID_BYTES).read_to_string(&mut pid);
                let process = read.ok().and_then(|_| pid.trim().parse().ok());
                return Err(StoreError::Taken { process });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join("keeper.lock");
        let claim = Claim::take(&lock, Duration::ZERO).unwrap();
        let taken = Claim::take(&lock, LOOK_EVERY).unwrap_err();
        assert!(
            matches!(taken, StoreError::Taken { process } if process == Some(std::process::id())),
            "{taken}"
        );
        drop(claim);
        Claim::take(&lock, Duration::ZERO).unwrap();
    }
}
