//! What a program reads and writes, opened.

use std::fs::File;
use std::os::fd::OwnedFd;

use crate::error::{Result, at};
use crate::output::{self, Stream};
use crate::request::Stdio;

/// Our ends of the pipes, and the inodes of the pipes.
pub(crate) type Streams = Option<([Stream; 2], [u64; 2])>;

/// Opens the standard streams of a program, and our ends of the kept ones.
pub(crate) fn open_stdio(stdio: Stdio) -> Result<([OwnedFd; 3], Streams)> {
    match stdio {
        Stdio::Null => Ok((null_stdio()?, None)),
        Stdio::Given(given) => Ok((given, None)),
        Stdio::Captured => {
            let [null, _, _] = null_stdio()?;
            capture(null)
        }
        Stdio::Asked(input) => capture(input),
    }
}

/// Makes the pipes of a program whose input is there.
fn capture(input: OwnedFd) -> Result<([OwnedFd; 3], Streams)> {
    let (out, out_theirs, out_inode) = output::pipe()?;
    let (err, err_theirs, err_inode) = output::pipe()?;
    let streams = ([out, err], [out_inode, err_inode]);
    Ok(([input, out_theirs, err_theirs], Some(streams)))
}

/// Opens `/dev/null` three times over.
pub(crate) fn null_stdio() -> Result<[OwnedFd; 3]> {
    let path = "/dev/null";
    let null = File::options().read(true).write(true).open(path);
    let null = OwnedFd::from(null.map_err(at("opening", path))?);
    let copy = || null.try_clone().map_err(at("opening", path));
    Ok([copy()?, copy()?, null])
}
