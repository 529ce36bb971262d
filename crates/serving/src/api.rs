//! The server of an API: a unix socket, a separate thread, and a bounded number of connections.
//!
//! One thread runs all sockets. Requests may block, so they run on a small number of other threads.
//! Connections beyond the bound make those end that only wait for their peer ([`Connections`]).

mod connections;

pub use connections::{Connections, Turn};

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread::JoinHandle;

use rawio::unix_socket;
use tokio::sync::oneshot;

/// Only its owner opens the socket; root always can. A server checks the user of its peer besides, for those
/// who change that.
const SOCKET_MODE: u32 = 0o600;

/// Listens on `socket`. It atomically replaces the socket of an earlier server: at no moment is the
/// socket missing, or has other permissions. The caller holds a lock that an earlier server has let go of; its
/// socket may still be open.
///
/// # Errors
/// If another file is there, or the socket cannot be created.
pub fn listen(socket: &Path) -> io::Result<UnixListener> {
    let aside = socket.with_extension(std::process::id().to_string());
    let bound = (|| {
        match unix_socket::is_served(socket) {
            Ok(_) => {} // a socket, which may be replaced
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        unix_socket::remove_dead(&aside)?;
        let listener = UnixListener::bind(&aside)?;
        fs::set_permissions(&aside, fs::Permissions::from_mode(SOCKET_MODE))?;
        fs::rename(&aside, socket)?;
        Ok(listener)
    })();
    bound.map_err(|error| {
        let text = format!("listening on {}: {error}", socket.display());
        io::Error::new(error.kind(), text)
    })
}

/// Ends when an API is to end.
pub type Closed = oneshot::Receiver<()>;

/// The thread of an API. Dropping it has the API end, and waits for the thread.
#[derive(Debug)]
pub struct ApiThread {
    close: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ApiThread {
    /// Starts a thread that runs `serve`, which must return soon after its argument has ended. Blocking
    /// calls have at most `calls` threads; one that hangs does not keep the API from ending.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start<F: Future<Output = ()>>(
        name: &str,
        calls: usize,
        serve: impl FnOnce(Closed) -> F + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name(format!("{name}-call"))
            .max_blocking_threads(calls)
            .build()?;
        let (close, closed) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                runtime.block_on(async { serve(closed).await });
                runtime.shutdown_background();
            })?;
        Ok(Self {
            close: Some(close),
            thread: Some(thread),
        })
    }
}

impl Drop for ApiThread {
    fn drop(&mut self) {
        drop(self.close.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the API ended in a panic");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Longer than anything takes here; reached only by a failure.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_socket_is_replaced_and_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("api.sock");
        let _earlier = listen(&socket).unwrap();
        let _later = listen(&socket).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "precious").unwrap();
        let refused = listen(&file).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{refused}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    }

    /// An API that sends back one byte, and what its end found.
    fn echo(socket: &Path, max: u32) -> (ApiThread, std::sync::mpsc::Receiver<bool>) {
        let listener = listen(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (tell, ended) = std::sync::mpsc::channel();
        let api = ApiThread::start("echo", 1, move |closed| async move {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            let connections = Connections::up_to(max);
            let accept = async || listener.accept().await.map(|(stream, _)| stream);
            connections
                .take(closed, accept, |mut stream, turn| async move {
                    let _busy = turn.begin();
                    let mut byte = [0];
                    let read = stream.read_exact(&mut byte).await;
                    if read.is_ok() {
                        drop(stream.write_all(&byte).await);
                    }
                })
                .await;
            tell.send(connections.wait_until_over(PATIENCE).await)
                .unwrap();
        });
        (api.unwrap(), ended)
    }

    fn ask(stream: &mut UnixStream) -> u8 {
        let mut byte = [0];
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut byte).unwrap();
        byte[0]
    }

    #[test]
    fn a_connection_beyond_the_bound_waits_for_another_to_end() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("api.sock");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap()); // left behind
        let (api, ended) = echo(&socket, 1);
        let mode = fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, SOCKET_MODE);
        let mut first = UnixStream::connect(&socket).unwrap();
        let mut second = UnixStream::connect(&socket).unwrap();
        second.write_all(b"y").unwrap();
        second
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        assert!(second.read(&mut [0]).is_err(), "it has no answer yet");
        assert_eq!(ask(&mut first), b'x');
        let mut byte = [0];
        second.set_read_timeout(Some(PATIENCE)).unwrap();
        second.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [b'y']);
        drop(api);
        assert!(ended.recv_timeout(PATIENCE).unwrap());
        assert!(UnixStream::connect(&socket).is_err(), "nobody listens");
    }

    #[test]
    fn the_end_waits_for_answers_that_are_under_way() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("api.sock");
        let (api, ended) = echo(&socket, 4);
        let mut stream = UnixStream::connect(&socket).unwrap();
        // It is taken once another, which came later, has its answer.
        assert_eq!(ask(&mut UnixStream::connect(&socket).unwrap()), b'x');
        let ending = std::thread::spawn(move || drop(api));
        assert_eq!(ask(&mut stream), b'x');
        ending.join().unwrap();
        assert!(ended.recv_timeout(PATIENCE).unwrap());
    }
}
